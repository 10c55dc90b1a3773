"""What layers, models and callbacks of Keras 2 took and had, and those of Keras 3 don't."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hvdnames import used
from hvdnames.imports import missing, no_attribute

# Layers that are gone, and where they or what took their place is now.
_LAYERS = {
    "CuDNNGRU": ("keras.layers", "GRU"),
    "CuDNNLSTM": ("keras.layers", "LSTM"),
    "ThresholdedReLU": ("keras._tf_keras.keras.layers", "ThresholdedReLU"),
}


def patch(keras: ModuleType, passed_on: Callable[..., None], drop: Callable[..., None]) -> None:
    """Let layers and callbacks take what they took, and models have what they had."""

    def shape(self: Any, kwargs: dict[str, Any]) -> None:
        if "batch_input_shape" in kwargs:
            used("batch_input_shape=")
            kwargs["input_shape"] = tuple(kwargs.pop("batch_input_shape"))[1:]

    passed_on(keras.layers.Layer, "__init__", shape)
    for owner in (keras.layers.BatchNormalization, keras.callbacks.TensorBoard):
        passed_on(owner, "__init__", lambda self, kwargs, n=owner.__name__: drop(kwargs, n))
    model = keras.Model
    model.predict_proba = _predict_proba
    keras.Sequential.predict_classes = _predict_classes


def _predict_proba(self: Any, x: Any, batch_size: Any = None, verbose: int = 0) -> Any:
    """`predict`, by its name in Keras 2, which printed nothing."""
    used("predict_proba()")
    return self.predict(x, batch_size, verbose)


def _predict_classes(self: Any, x: Any, batch_size: Any = None, verbose: int = 0) -> Any:
    """The class of each input: the place of the largest output; of one output, above 0.5 or not."""
    used("predict_classes()")
    found = self.predict(x, batch_size, verbose)
    return found.argmax(axis=-1) if found.shape[-1] > 1 else (found > 0.5).astype("int32")


def layers(module: ModuleType) -> None:
    """Let a module `layers` have those that are gone."""

    def look_up(name: str) -> Any:
        if name not in _LAYERS:
            raise no_attribute(module, name)
        used(f"layers.{name}")
        owner, now = _LAYERS[name]
        return getattr(importlib.import_module(owner), now)

    missing(module, look_up)
