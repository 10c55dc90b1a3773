"""`hvd.elastic` of the TensorFlow binding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.elastic.state import ObjectState, State, run, run_fn
from hvdlite.elastic.variables import ModelState, VariablesState

__all__ = [
    "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run", "run_fn",
]  # fmt: skip


class TensorFlowKerasState(ModelState):
    """A model of tf.keras and its optimizer; ValueError for a model without variables yet."""

    def _get(self, variable: Any) -> np.ndarray:
        from hvdlite.keras.functions import read  # not at the top: it imports Keras

        return read(variable)

    def _set(self, variable: Any, value: np.ndarray) -> None:
        from hvdlite.keras.functions import write

        write(variable, value)


class TensorFlowState(VariablesState):
    """A list of variables; in TensorFlow 1 those of a session, by default all global ones."""

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any):
        self.variables = variables or tf.compat.v1.global_variables()
        self.session = session or tf.compat.v1.get_default_session()
        super().__init__(**kwargs)

    def tracked(self) -> Sequence[Any]:
        return self.variables

    def _read(self) -> list[Any]:
        return super()._read() if self.session is None else self.session.run(self.variables)

    def _write(self, values: list[Any]) -> None:
        if self.session is None:
            super()._write(values)
        else:
            for variable, value in zip(self.variables, values, strict=True):
                variable.load(value, self.session)
