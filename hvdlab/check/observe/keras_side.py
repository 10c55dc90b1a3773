"""Watches Keras, 3 and tf_keras: what the model gets, and each step of the optimizer.

What differs between TensorFlow and PyTorch below Keras is told by their own sides.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import hvdlite

from . import runtime
from .recorder import Recorder, Samples, digest, sketch


def watch(record: Recorder, samples: Samples, steps: int | None) -> None:
    """Start to watch Keras 3; before the script has made anything.

    steps: the most that a call of fit takes in an epoch, of two; None where nothing is cut.
    """
    import keras
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    backend = keras.backend.backend()
    if backend not in ("tensorflow", "torch"):
        return
    side = importlib.import_module(f"{__package__}.{backend}_side")
    _watch_models(record, samples, steps, keras, side)
    apply, clip = BaseOptimizer.apply, BaseOptimizer._clip_gradients
    used: list[Any] = []

    @functools.wraps(clip)
    def watched_clip(self: Any, grads: Any) -> Any:
        used[:] = grads  # behind the reduction, whoever does it
        return clip(self, grads)

    @functools.wraps(apply)
    def watched_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        used.clear()
        variables = list(trainable_variables or self._trainable_variables)
        with _noted_step(record, side, self, variables, used):
            return apply(self, grads, trainable_variables)

    BaseOptimizer.apply, BaseOptimizer._clip_gradients = watched_apply, watched_clip


def watch_tf_keras(record: Recorder, samples: Samples, steps: int | None) -> None:
    """The same for tf_keras."""
    import tf_keras
    from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from tf_keras.src.optimizers.optimizer import Optimizer

    from . import tensorflow_side as side

    _watch_models(record, samples, steps, tf_keras, side)

    def watch_steps(kind: type, name: str, place: int) -> None:
        """Where pairs of gradients, which were reduced, and variables are the argument there."""
        apply = getattr(kind, name)

        @functools.wraps(apply)
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(args[place])
            args = (*args[:place], pairs, *args[place + 1 :])
            grads, variables = [g for g, _ in pairs], [v for _, v in pairs]
            with _noted_step(record, side, self, variables, grads):
                return apply(self, *args, **kwargs)

        setattr(kind, name, watched)

    watch_steps(Optimizer, "_internal_apply_gradients", 0)
    watch_steps(OptimizerV2, "_distributed_apply", 1)


@contextmanager
def _noted_step(
    record: Recorder, side: ModuleType, optimizer: Any, variables: list[Any], used: list[Any]
) -> Iterator[None]:
    """Note one step; `used` are its gradients, which may come while it is taken."""
    for each in runtime.before_step:
        each()
    before = [np.asarray(each).copy() for each in variables]
    rate = float(np.asarray(optimizer.learning_rate))
    yield
    gradients = side.numbers(used)
    facts = {"lr": rate, "elements": int(sum(each.size for each in before))}
    facts |= {"own": side.own_gradients(), "grads": digest(gradients)}
    facts["used"] = sketch(gradients).tolist() if gradients else None
    after = digest(np.asarray(each) for each in variables)
    record("step", **facts, before=digest(before), after=after)


def _watch_models(
    record: Recorder, samples: Samples, steps: int | None, keras: Any, side: ModuleType
) -> None:
    _watch_batches(record, samples, keras.layers.Layer, side)
    _watch_fit(record, steps, keras.Model)


def _watch_batches(record: Recorder, samples: Samples, layer: type, side: ModuleType) -> None:
    depth = [0]
    call = layer.__call__

    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        images = side.array_of(args[0]) if depth[0] == 0 and args else None
        trains = side.is_training()
        depth[0] += 1
        try:
            output = call(self, *args, **kwargs)
        finally:
            depth[0] -= 1
        ids: list[int | str] = []
        # Only now: a model that was not built has its weights since this call.
        if images is not None and images.ndim > 1 and self.weights:
            ids = samples.identify(images)
            record("batch", train=trains, ids=ids)
        scores = side.array_of(output) if ids else None
        if scores is not None and trains:
            record("expected", value=samples.cross_entropy(ids, scores))
        elif scores is not None and (right := samples.right(ids, scores)) is not None:
            record("right", count=right, of=len(ids))
        return output

    layer.__call__ = watched


# What an iterator, a tf.data.Dataset, a PyDataset and a DataLoader have, and no array.
_BATCHED = ("__next__", "element_spec", "on_epoch_end", "batch_sampler")


def _watch_fit(record: Recorder, steps: int | None, model: type) -> None:
    fit = model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def watched(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        is_shuffled = not any(hasattr(given.get("x"), name) for name in _BATCHED)
        is_shuffled &= bool(given.get("shuffle", True))
        record("fit", steps_per_epoch=given.get("steps_per_epoch"), is_shuffled=is_shuffled)
        if steps is not None:
            given["epochs"] = min(given.get("epochs", 1), given.get("initial_epoch", 0) + 2)
            if given.get("steps_per_epoch"):
                given["steps_per_epoch"] = min(given["steps_per_epoch"], steps)
        for kind in {type(each) for each in given.get("callbacks") or []}:
            _watch_decisions(record, kind)
        return fit(**given)

    model.fit = watched


def _watch_decisions(record: Recorder, kind: type) -> None:
    """What a callback that changes the training, the script's or Keras', decides by."""
    end = getattr(kind, "on_epoch_end", None)
    code = getattr(end, "__code__", None)
    if code is None or not {"stop_training", "learning_rate"} & set(code.co_names):
        return
    if code.co_filename.startswith(str(Path(hvdlite.__file__).parent)):
        return  # ours average, and decide nothing

    @functools.wraps(end)
    def watched(self: Any, epoch: int, logs: Any = None) -> None:
        monitor = getattr(self, "monitor", None)
        names = [monitor] if monitor else sorted(set(code.co_consts) & set(logs or ()))
        values = [(logs or {}).get(name) for name in names]
        before = runtime.collectives[0]
        end(self, epoch, logs)
        if runtime.collectives[0] > before:
            return  # it asks the other ranks by itself
        for name, value in zip(names, values, strict=True):
            value = None if value is None else float(value)
            record("decision", by=kind.__name__, monitor=name, value=value)

    kind.on_epoch_end = watched
