"""Modules of Keras 2 that are gone, and functions and classes that modules have lost."""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hvdnames import keras_layers, used
from hvdnames.imports import in_place_of, missing, no_attribute

_ROOTS = ("keras", "tensorflow.keras", "keras._tf_keras.keras")
# Modules that are gone, and the modules that have their names now.
MODULES = (
    _ROOTS,
    {
        "backend.tensorflow_backend": "backend",
        "engine": "layers models utils",
        "engine.topology": "layers models utils",
        "engine.training": "models",
        "layers.advanced_activations": "layers",
        "layers.convolutional": "layers",
        "layers.core": "layers",
        "layers.embeddings": "layers",
        "layers.merge": "layers",
        "layers.noise": "layers",
        "layers.normalization": "layers",
        "layers.pooling": "layers",
        "layers.recurrent": "layers",
        "layers.wrappers": "layers",
        "objectives": "losses",
        "preprocessing.text": "_tf_keras.keras.preprocessing.text",  # the one that tf.keras has
        "utils.data_utils": "utils",
        "utils.generic_utils": "utils",
        "utils.np_utils": "utils",
        "utils.vis_utils": "utils",
    },
)


def _set_session(session: Any) -> None:
    """Nothing: Keras 3 has no session, and TensorFlow takes GPUs from tf.config."""
    used("backend.set_session()")


def _of_variables(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of tf.keras's backend take variables of Keras 3, and not TensorFlow's only."""

    def unwrapped(given: Any) -> Any:
        if isinstance(given, importlib.import_module("keras").Variable):
            used("variables of Keras in functions of the backend")
            return given.value
        return type(given)(map(unwrapped, given)) if type(given) in (list, tuple) else given

    @in_place_of(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        values = {name: unwrapped(value) for name, value in kwargs.items()}
        return function(*unwrapped(args), **values)

    return method


_OF_GRAPHS = ("function", "get_session", "in_train_phase", "learning_phase", "placeholder",
              "set_learning_phase")  # fmt: skip


def _backend(module: ModuleType) -> None:
    for name, function in list(vars(module).items()):
        if getattr(function, "__module__", "") == "keras.src.legacy.backend":
            setattr(module, name, _of_variables(function))

    def look_up(name: str) -> Any:
        if name == "set_session":
            return _set_session
        if name == "tensorflow_backend":
            used("backend.tensorflow_backend")
            return module
        if name in _OF_GRAPHS:
            advice = "Keras 3 has no graph; tf.keras is Keras 2 with TF_USE_LEGACY_KERAS=1 set"
            raise no_attribute(module, name, advice)
        return _in_tf_keras(module, name)

    missing(module, look_up)


def _in_tf_keras(module: ModuleType, name: str) -> Any:
    """What only tf.keras still has, under the name of the package `keras`."""
    package = module.__name__
    if package.startswith("keras.") and not package.startswith("keras._") and name[0] != "_":
        found = getattr(importlib.import_module(f"keras._tf_keras.{package}"), name, None)
        if found is not None:
            used(f"{module.__name__}.{name}")
            return found
    raise no_attribute(module, name)


def _functions(module: ModuleType) -> None:
    """Losses and metrics that are functions: tf.keras has lost some that `keras` still has."""

    def look_up(name: str) -> Any:
        part = module.__name__.rpartition(".")[2]
        of_keras = importlib.import_module(f"keras.{part}")
        if name.startswith("_") or not hasattr(of_keras, name):
            raise no_attribute(module, name)
        used(f"tf.keras.{part}.{name}")
        return getattr(of_keras, name)

    missing(module, look_up)


def _old_optimizers(module: ModuleType) -> None:
    """`optimizers.legacy.Adam` and its like are the optimizers of Keras 3."""
    optimizers = importlib.import_module("keras.optimizers")
    if getattr(module.Adam, "__name__", "") != "LegacyOptimizerWarning":
        return  # tf_keras's own
    for name in [each for each in vars(module) if not each.startswith("_")]:
        delattr(module, name)

    def look_up(name: str) -> Any:
        found = getattr(optimizers, name, None)
        if name.startswith("_") or found is None:
            raise no_attribute(module, name)
        used(f"optimizers.legacy.{name}")
        return found

    missing(module, look_up)


PATCHES: dict[str, Callable[[ModuleType], None]] = {}
for _root in _ROOTS:
    PATCHES[f"{_root}.backend"] = _backend
    PATCHES[f"{_root}.layers"] = keras_layers.layers
    PATCHES[f"{_root}.optimizers.legacy"] = _old_optimizers
    if _root != "keras":
        PATCHES[f"{_root}.losses"] = PATCHES[f"{_root}.metrics"] = _functions
for _name in ("keras.preprocessing", "keras.preprocessing.image"):
    PATCHES[_name] = lambda module: missing(module, functools.partial(_in_tf_keras, module))
