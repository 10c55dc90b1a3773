"""Watches TensorFlow 2: devices, threads, tapes. Functions run eagerly, so that it can be seen.

What Keras does with it is watched in keras_side.py, sessions of TensorFlow 1 in session_side.py.
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from ..evidence import is_known
from . import runtime
from .recorder import Recorder, Samples, sketch

tapes_open = [0]
local: list[np.ndarray] = []  # a sketch of this rank's own gradients since the last step


def watch(record: Recorder, samples: Samples) -> None:
    """Start to watch; before the script has made anything."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.run_functions_eagerly(True)
    for config in (tf.config, tf.compat.v1.config):
        _pretend_gpus(config, record)
        _watch_threads(config, record)
    _watch_placement(record)
    note_weights = _own_first_weights(record)
    _watch_tapes(record, note_weights)
    _watch_reading(record, samples, note_weights)


def array_of(value: Any) -> np.ndarray | None:
    """The numbers of an eager tensor or an array; None for what has none yet."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and tf.executing_eagerly():
        return value.numpy()
    return None


def numbers(gradients: Any) -> list[np.ndarray]:
    """The gradients that there are, as arrays; of a sparse one its values."""
    found = (array_of(getattr(each, "values", each)) for each in gradients if each is not None)
    return [each for each in found if each is not None]


def is_training() -> bool:
    """Whether gradients will be asked for."""
    return tapes_open[0] > 0


def own_gradients() -> list[float] | None:
    """A sketch of this rank's own gradients since the last step, once."""
    return local.pop().tolist() if local else None


def _pretend_gpus(config: Any, record: Recorder) -> None:
    gpus = [
        tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(record.gpus)
    ]
    visible: dict[int, list[Any]] = {}  # by the run of the script
    list_devices, set_devices = config.list_physical_devices, config.set_visible_devices
    get_devices = config.get_visible_devices

    def list_physical_devices(device_type: str | None = None) -> list[Any]:
        if not record.from_script():
            return list_devices(device_type)
        record.gpus_are_seen()
        rest = [] if device_type == "GPU" else list_devices(device_type)
        return [*rest, *(gpus if device_type in (None, "GPU") else [])]

    def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
        record.gpus_are_seen()
        # A device is a tuple of its own.
        given = [devices] if isinstance(devices, tf.config.PhysicalDevice) else devices or []
        mine = [device for device in given if device in gpus]
        if device_type == "GPU" or mine:
            visible[record.phase] = mine
            chosen = [gpus.index(device) for device in mine]
            record("gpu", how="visible", chosen=chosen, where=record.where())
        else:
            set_devices(devices, device_type)

    config.list_physical_devices = list_physical_devices
    config.set_visible_devices = set_visible_devices

    def get_visible_devices(device_type: str | None = None) -> list[Any]:
        rest = [] if device_type == "GPU" else get_devices(device_type)
        mine = visible.get(record.phase, gpus) if device_type in (None, "GPU") else []
        return [*rest, *mine]

    config.get_visible_devices = get_visible_devices
    experimental = config.experimental
    experimental.list_physical_devices = list_physical_devices
    experimental.set_visible_devices = set_visible_devices
    experimental.set_memory_growth = experimental.set_virtual_device_configuration = lambda *_: None
    config.set_logical_device_configuration = lambda *_: None


def _watch_placement(record: Recorder) -> None:
    """`with tf.device("/GPU:1")` is another way to choose one."""
    device = tf.device

    def watched(name: Any) -> Any:
        found = re.search(r"GPU:(\d+)", name.upper()) if isinstance(name, str) else None
        if found is None or not record.from_script():
            return device(name)
        record("gpu", how="used", index=int(found[1]), where=record.where())
        return device("/CPU:0")

    tf.device = watched


def _watch_threads(config: Any, record: Recorder) -> None:
    threads = [0]

    def set_intra(count: int) -> None:
        threads[0] = int(count)
        record("threads", count=int(count), where=record.where())

    config.threading.set_intra_op_parallelism_threads = set_intra
    config.threading.get_intra_op_parallelism_threads = lambda: threads[0]
    config.threading.set_inter_op_parallelism_threads = lambda _: None


def _watch_tapes(record: Recorder, note_weights: Callable[[], None]) -> None:
    """Whether a tape is open tells training from validation; its target is the loss."""
    enter, leave = tf.GradientTape.__enter__, tf.GradientTape.__exit__
    gradient = tf.GradientTape.gradient

    @functools.wraps(enter)
    def watched_enter(self: Any) -> Any:
        note_weights()
        tapes_open[0] += 1
        return enter(self)

    @functools.wraps(leave)
    def watched_leave(self: Any, *args: Any) -> None:
        tapes_open[0] -= 1
        leave(self, *args)

    @functools.wraps(gradient)
    def watched_gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        loss = array_of(target) if not isinstance(target, list | tuple) else None
        if loss is not None and loss.size == 1:
            record("loss", value=float(loss))
        gradients = gradient(self, target, *args, **kwargs)
        local[:] = [sketch(numbers(tf.nest.flatten(gradients)))]
        return gradients

    tf.GradientTape.__enter__, tf.GradientTape.__exit__ = watched_enter, watched_leave
    tf.GradientTape.gradient = watched_gradient


def _watch_reading(record: Recorder, samples: Samples, note_weights: Callable[[], None]) -> None:
    """What the script's own loops read, and give to functions of theirs, for models that are none
    of Keras'."""
    function = type(tf.function(lambda: None))
    take, call = OwnedIterator.__next__, function.__call__
    depth, last = [0], [[]]

    def identify(values: Any) -> list[int | str]:
        arrays = (array_of(each) for each in values)
        images = next((each for each in arrays if each is not None and each.ndim > 1), None)
        return [] if images is None else samples.identify(images)

    @functools.wraps(take)
    def watched(self: Any) -> Any:
        batch = take(self)
        if record.from_script():
            note_weights()
            last[0] = identify(tf.nest.flatten(batch))
            record("read", ids=last[0])
        return batch

    @functools.wraps(call)
    def watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        ids = identify(args) if depth[0] == 0 else []
        if ids and is_known(ids[0]) and ids != last[0]:
            note_weights()
            record("read", ids=ids)
            last[0] = ids
        depth[0] += 1
        try:
            output = call(self, *args, **kwargs)
        finally:
            depth[0] -= 1
        if ids and not any(isinstance(number, int) for number in ids):  # a validation's
            scores = array_of(output)
            right = None if scores is None else samples.right(ids, scores)
            if right is not None:
                record("right", count=right, of=len(ids))
        return output

    OwnedIterator.__next__, function.__call__ = watched, watched_call


def _own_first_weights(record: Recorder) -> Callable[[], None]:
    """Rank 1 starts from weights of its own, as it would with another seed.

    Equal seeds would hide that nothing was broadcast. Returns what notes all weights.
    """
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    made = weakref.WeakValueDictionary[int, ResourceVariable]()
    count, shifted = itertools.count(), [0]
    init = ResourceVariable.__init__

    @functools.wraps(init)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.trainable and self.dtype.is_floating and self.shape.rank:
            made[next(count)] = self

    # Below the variables: nobody's tape or custom gradient is to know of it.
    def value(of: Any) -> np.ndarray:
        return tf.raw_ops.ReadVariableOp(resource=of.handle, dtype=of.dtype).numpy()

    def shift() -> None:
        if not tf.executing_eagerly():
            return
        new = {number: each for number, each in made.items() if number >= shifted[0]}
        for variable in new.values() if record.rank else ():
            other = tf.constant(
                value(variable) * (1 + 0.1 * record.rank) + 0.01 * record.rank, variable.dtype
            )
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=other)
        shifted[0] = max(new, default=shifted[0] - 1) + 1

    def weights() -> list[np.ndarray]:
        return [value(each) for _, each in sorted(made.items())]

    def note_weights() -> None:
        if tf.executing_eagerly() and made:
            shift()
            runtime.note_weights(record, weights, own_gradients)

    ResourceVariable.__init__ = watched
    runtime.before_collective.append(shift)
    runtime.before_step.append(shift)
    runtime.before_broadcast.append(note_weights)
    return note_weights
