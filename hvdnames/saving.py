"""Where Keras 2 saved: any path for models, .h5 and TensorFlow's checkpoints for weights."""

import importlib
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hvdnames import used
from hvdnames.imports import in_place_of


def patch(keras: ModuleType, drop: Callable[..., None]) -> None:
    """Let models be saved under the paths that Keras 2 took."""
    api = importlib.import_module("keras.src.saving.saving_api")
    model = keras.Model
    save_model, save_weights, load_weights = api.save_model, api.save_weights, api.load_weights

    @in_place_of(save_model)
    def save(
        model: Any, filepath: Any, overwrite: bool = True, zipped: Any = None, **kwargs: Any
    ) -> Any:
        if kwargs.get("save_format") in ("tf", "h5", "keras"):
            used("save(save_format=)")
            del kwargs["save_format"]
        path = str(filepath)
        if zipped is None and not path.endswith((".keras", ".h5", ".hdf5")) and "://" not in path:
            used("save() to a folder")  # then of Keras's own format: load_model reads it
            zipped = False
        return save_model(model, filepath, overwrite, zipped, **kwargs)

    @in_place_of(save_weights)
    def save_of_weights(
        model: Any, filepath: Any, overwrite: bool = True, max_shard_size: Any = None, **kwargs: Any
    ) -> Any:
        path = str(filepath)
        if max_shard_size is not None or path.endswith((".weights.h5", ".keras")):
            return save_weights(model, filepath, overwrite, max_shard_size, **kwargs)
        drop(kwargs, "save_weights")
        if path.endswith((".h5", ".hdf5")):
            used("save_weights('*.h5')")
            return _save_h5(model, path)
        used("save_weights() to a checkpoint")
        return _save_checkpoint(model, path)

    @in_place_of(load_weights)
    def load_of_weights(
        model: Any, filepath: Any, skip_mismatch: bool = False, **kwargs: Any
    ) -> Any:
        if not os.path.exists(str(filepath) + ".index"):
            return load_weights(model, filepath, skip_mismatch, **kwargs)
        import tensorflow as tf

        used("load_weights() from a checkpoint")
        return tf.train.Checkpoint(model=model).read(str(filepath)).expect_partial()

    api.save_model, api.save_weights, api.load_weights = save, save_of_weights, load_of_weights
    for module in (keras.saving, keras.models):  # those of tf.keras take theirs from `api`
        for name in ("save_model", "save_weights", "load_weights"):
            if hasattr(module, name):
                setattr(module, name, getattr(api, name))
    original = model.save_weights

    @in_place_of(original)
    def method(self: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        drop(kwargs, "save_weights")
        return original(self, filepath, overwrite, *args, **kwargs)

    model.save_weights = method
    _patch_h5(keras)


def _patch_h5(keras: ModuleType) -> None:
    """A model from an .h5 file can be trained further; its loss may have a short name, and a layer
    may be one that is gone."""
    legacy = importlib.import_module("keras.src.legacy.saving.legacy_h5_format")
    original = legacy.load_model_from_hdf5

    @in_place_of(original)
    def load(filepath: Any, custom_objects: Any = None, *args: Any, **kwargs: Any) -> Any:
        known = importlib.import_module("keras.src.losses").ALL_OBJECTS_DICT.items()
        names = {name: value for name, value in known if inspect.isfunction(value)}
        names["ThresholdedReLU"] = importlib.import_module(
            "keras.src.legacy.layers"
        ).ThresholdedReLU
        model = original(filepath, names | (custom_objects or {}), *args, **kwargs)
        optimizer = model.optimizer
        if optimizer is not None and not getattr(optimizer, "_trainable_variables", True):
            _rebuild(model, filepath, legacy)
        return model

    legacy.load_model_from_hdf5 = load


def _rebuild(model: Any, filepath: Any, legacy: ModuleType) -> None:
    """Keras builds the optimizer for the variables of the model without those of its layers."""
    import h5py

    used("training on from load_model('*.h5')")
    fresh = type(model.optimizer).from_config(model.optimizer.get_config())
    fresh.build(model.trainable_variables)
    with h5py.File(filepath, "r") as file:
        values = [each[()] for each in legacy.load_optimizer_weights_from_hdf5_group(file)]
    if len(values) == len(fresh.variables):
        for variable, value in zip(fresh.variables, values, strict=True):
            variable.assign(value)
    model.optimizer = fresh


def _save_h5(model: Any, path: str) -> None:
    import h5py

    legacy = importlib.import_module("keras.src.legacy.saving.legacy_h5_format")
    with h5py.File(path, "w") as file:
        legacy.save_weights_to_hdf5_group(file, model)


def _save_checkpoint(model: Any, path: str) -> None:
    import tensorflow as tf

    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    tf.train.Checkpoint(model=model).write(path)
    tf.compat.v1.train.update_checkpoint_state(os.path.dirname(path) or ".", path)
