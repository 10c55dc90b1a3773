"""`hvd.elastic` of the binding to Keras."""

import keras

from hvdelastic.callbacks import make
from hvdelastic.state import ObjectState, State, run, run_fn
from hvdelastic.variables import ModelState as KerasState

__all__ = [
    "CommitStateCallback", "KerasState", "ObjectState", "State", "UpdateBatchStateCallback",
    "UpdateEpochStateCallback", "run", "run_fn",
]  # fmt: skip

CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback = make(keras)
