"""Watches Keras 3: what the model gets, and each step of the optimizer."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import numpy as np
from keras.src.optimizers.base_optimizer import BaseOptimizer

from . import runtime
from .recorder import Recorder, Samples, digest, sketch


def watch(record: Recorder, samples: Samples, steps: int | None) -> None:
    """Start to watch; before the script has made anything.

    steps: the most that a call of fit takes in an epoch, of two; None where nothing is cut.
    """
    if keras.backend.backend() != "tensorflow":
        return
    _watch_batches(record, samples)
    _watch_steps(record)
    _watch_fit(record, steps)


def _watch_batches(record: Recorder, samples: Samples) -> None:
    from . import tensorflow_side

    depth = [0]
    call = keras.layers.Layer.__call__

    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        images = tensorflow_side.array_of(args[0]) if depth[0] == 0 and args else None
        trains = tensorflow_side.tapes_open[0] > 0
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
        scores = tensorflow_side.array_of(output) if ids else None
        if scores is not None and trains:
            record("expected", value=samples.cross_entropy(ids, scores))
        elif scores is not None and (right := samples.right(ids, scores)) is not None:
            record("right", count=right, of=len(ids))
        return output

    keras.layers.Layer.__call__ = watched


def _watch_steps(record: Recorder) -> None:
    from .tensorflow_side import local, numbers

    apply, clip = BaseOptimizer.apply, BaseOptimizer._clip_gradients
    pending: dict[str, Any] = {}

    @functools.wraps(clip)
    def watched_clip(self: Any, grads: Any) -> Any:
        # Behind the reduction, whoever does it.
        pending["grads"] = digest(numbers(grads))
        pending["used"] = sketch(numbers(grads)).tolist()
        return clip(self, grads)

    @functools.wraps(apply)
    def watched_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        for each in runtime.before_step:
            each()
        variables = list(trainable_variables or self._trainable_variables)
        before = [np.asarray(each) for each in variables]
        rate = float(np.asarray(self.learning_rate))
        result = apply(self, grads, trainable_variables)
        elements = int(sum(each.size for each in before))
        facts = {"lr": rate, "elements": elements, "before": digest(before)}
        facts |= {"own": local.pop().tolist() if local else None, "grads": "", **pending}
        pending.clear()
        record("step", **facts, after=digest(np.asarray(each) for each in variables))
        return result

    BaseOptimizer.apply, BaseOptimizer._clip_gradients = watched_apply, watched_clip


def _watch_fit(record: Recorder, steps: int | None) -> None:
    fit = keras.Model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def watched(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        record("fit", steps_per_epoch=given.get("steps_per_epoch"))
        if steps is not None:
            given["epochs"] = min(given.get("epochs", 1), given.get("initial_epoch", 0) + 2)
            if given.get("steps_per_epoch"):
                given["steps_per_epoch"] = min(given["steps_per_epoch"], steps)
        return fit(**given)

    keras.Model.fit = watched
