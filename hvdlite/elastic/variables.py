"""States of variables, for TensorFlow and Keras alike."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdlite.basics import rank
from hvdlite.elastic.state import ObjectState
from hvdlite.objects import broadcast_object


class VariablesState(ObjectState):
    """Variables, and plain values as attributes. `tracked()` lists the variables."""

    def __init__(self, **kwargs: Any):
        super().__init__(broadcast_object, rank, **kwargs)
        self._values = self._read()

    def tracked(self) -> Sequence[Any]:
        """The variables, in the same order on every rank."""
        raise NotImplementedError

    def save(self) -> None:
        self._values = self._read()
        super().save()

    def restore(self) -> None:
        self._write(self._values)
        super().restore()

    def sync(self) -> None:
        self._values = self._bcast_object(self._read())
        self._write(self._values)
        super().sync()

    def _get(self, variable: Any) -> np.ndarray:
        return variable.numpy()

    def _set(self, variable: Any, value: np.ndarray) -> None:
        variable.assign(value)

    def _read(self) -> list[np.ndarray]:
        return [np.array(self._get(variable)) for variable in self.tracked()]

    def _write(self, values: list[np.ndarray]) -> None:
        # Optimizers of TensorFlow 1 make variables in their first step.
        for variable, value in itertools.zip_longest(self.tracked(), values):
            if variable is not None:
                self._set(variable, np.zeros_like(self._get(variable)) if value is None else value)


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Make the optimizer's own variables, which otherwise come with its first step."""
    built = getattr(optimizer, "built", getattr(optimizer, "_built", False))
    if hasattr(optimizer, "_create_all_weights"):  # tf.keras.optimizers.legacy
        optimizer._create_all_weights(variables)
    elif hasattr(optimizer, "build") and not built:
        optimizer.build(variables)


class ModelState(VariablesState):
    """A Keras model and its optimizer. Raises ValueError for a model that has no variables yet."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        if not getattr(model, "built", True):
            raise ValueError("build the model first: model.build(input_shape), or one batch")
        self.model, self.optimizer = model, optimizer or model.optimizer
        _build(self.optimizer, model.trainable_variables)
        super().__init__(**kwargs)

    def tracked(self) -> list[Any]:
        variables = self.optimizer.variables  # of older optimizers a method
        return [*self.model.variables, *(variables if isinstance(variables, list) else variables())]
