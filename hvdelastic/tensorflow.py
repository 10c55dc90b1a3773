"""`hvd.elastic` of the TensorFlow binding."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdelastic.state import ObjectState, State, run, run_fn
from hvdelastic.variables import ModelState, VariablesState

__all__ = [
    "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run", "run_fn",
]  # fmt: skip

TensorFlowKerasState = ModelState


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
