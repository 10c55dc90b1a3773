"""`hvd.elastic` of the binding to Keras."""

from typing import Any

import keras
import numpy as np

from hvdlite.elastic.callbacks import CommitState, UpdateBatchState, UpdateEpochState
from hvdlite.elastic.state import ObjectState, State, run, run_fn
from hvdlite.elastic.variables import ModelState
from hvdlite.keras.functions import read, write

__all__ = [
    "CommitStateCallback", "KerasState", "ObjectState", "State", "UpdateBatchStateCallback",
    "UpdateEpochStateCallback", "run", "run_fn",
]  # fmt: skip


class KerasState(ModelState):
    """A model and its optimizer. Raises ValueError for a model that has no variables yet."""

    def _get(self, variable: Any) -> np.ndarray:
        return read(variable)

    def _set(self, variable: Any, value: np.ndarray) -> None:
        write(variable, value)


class CommitStateCallback(CommitState, keras.callbacks.Callback):
    """Commits the state after so many batches, and at the end of each epoch."""


class UpdateBatchStateCallback(UpdateBatchState, keras.callbacks.Callback):
    """Keeps the number of the last batch in `state.batch`, 0 between epochs."""


class UpdateEpochStateCallback(UpdateEpochState, keras.callbacks.Callback):
    """Counts the epochs in `state.epoch`, over all starts of the training."""
