"""`hvd.elastic` of the binding to tf.keras."""

import tensorflow as tf

from hvdlite.elastic.callbacks import CommitState, UpdateBatchState, UpdateEpochState
from hvdlite.elastic.state import ObjectState, State, run, run_fn
from hvdlite.tensorflow.elastic import TensorFlowKerasState as KerasState

__all__ = [
    "CommitStateCallback", "KerasState", "ObjectState", "State", "UpdateBatchStateCallback",
    "UpdateEpochStateCallback", "run", "run_fn",
]  # fmt: skip


class CommitStateCallback(CommitState, tf.keras.callbacks.Callback):
    """Commits the state after so many batches, and at the end of each epoch."""


class UpdateBatchStateCallback(UpdateBatchState, tf.keras.callbacks.Callback):
    """Keeps the number of the last batch in `state.batch`, 0 between epochs."""


class UpdateEpochStateCallback(UpdateEpochState, tf.keras.callbacks.Callback):
    """Counts the epochs in `state.epoch`, over all starts of the training."""
