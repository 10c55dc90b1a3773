"""Collectives where TensorFlow computes: at once, or as an operation of the graph in the making.

In a graph the collective is a Python function that TensorFlow calls when its turn comes, or that a
program of XLA calls. Inside a tf.function these calls keep the order of the program, so all ranks
make them in the same one.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from hvdlite import exceptions
from hvdlite.tensorflow import gpu, xla
from hvdlite.waiting import signals


class HorovodInternalError(exceptions.HorovodInternalError, tf.errors.FailedPreconditionError):
    """What a failed collective raises: both that Horovod's programs catch."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class ArgumentError(ValueError, tf.errors.InvalidArgumentError):
    """What a wrong argument raises outside of graphs, where TensorFlow has the second of these."""

    def __init__(self, message: str):
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def as_tensorflow(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, whose errors are TensorFlow's as well."""
    try:
        return function(*args)
    except exceptions.HorovodInternalError as error:
        raise HorovodInternalError(str(error)) from None
    except ValueError as error:
        raise ArgumentError(str(error)) from None


_failed: list[str] = []  # the message of the last collective that failed inside a graph


def _raise_ours_from_functions() -> None:
    """Let a tf.function whose collective fails raise what that has raised; Keras's steps are such.

    TensorFlow makes an error of its own of what a Python function inside a graph raises, and
    tells of the whole graph, with the message in the middle.
    """
    kind = type(tf.function(lambda: None))
    theirs = kind.__call__

    @functools.wraps(theirs)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(self, *args, **kwargs)
        except tf.errors.OpError as error:
            if _failed and _failed[0] in error.message:
                raise HorovodInternalError(_failed[0]) from None
            if xla.FAILED in error.message and xla.failed:
                as_tensorflow(_raise, xla.failed.pop())
            raise

    kind.__call__ = call


def _raise(error: BaseException) -> None:
    raise error


def _show_own_lines_only() -> None:
    """Let an uncaught HorovodInternalError end with the user's own line and the message."""
    previous = sys.excepthook

    def hook(kind: type, error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, HorovodInternalError):
            trace = _own_lines(trace) or trace
            error = error.with_traceback(trace)
        previous(kind, error, trace)

    sys.excepthook = hook


def _own_lines(trace: TracebackType | None) -> TracebackType | None:
    """Those of a traceback that are neither in a library nor here."""
    if trace is None:
        return None
    rest, file = _own_lines(trace.tb_next), trace.tb_frame.f_code.co_filename
    if "site-packages" in file or file.startswith((*_OURS, "<")):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


_OURS = [str(Path(__file__).parents[2] / name) for name in ("hvdlite", "hvdnames")]
_raise_ours_from_functions()
_show_own_lines_only()


def call(
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[Any] | None = None,
    place: str | None = None,
) -> list[tf.Tensor]:
    """The tensors that `function` makes of the arrays of `tensors`.

    `dtypes` and, as far as they are known, `shapes` are those of the results. The arrays must not
    be written to. They are in host memory, or with `place`, from `gpu.device_for`, on that GPU.
    """
    if tf.executing_eagerly():
        if place is not None:
            return as_tensorflow(gpu.run, function, tensors, xla.stream(place))
        results = as_tensorflow(function, *[np.asarray(tensor) for tensor in tensors])
        return [tf.convert_to_tensor(result) for result in results]
    signals.watch()
    shapes = [None] * len(dtypes) if shapes is None else shapes
    if xla.is_compiling() and xla.is_available():
        return xla.custom_call(function, tensors, dtypes, shapes, place)
    stream, room = (xla.stream(place) if place is not None else None), []
    if place is not None and all(tf.TensorShape(each).is_fully_defined() for each in shapes):
        with tf.device(place):
            room = [gpu.room(*each) for each in zip(shapes, dtypes, strict=True)]
    count = len(tensors)

    def body(*given: Any) -> list[Any]:
        try:
            if place is not None:
                return gpu.run(function, given[:count], stream, given[count:])
            return list(function(*map(np.asarray, given)))
        except exceptions.HorovodInternalError as error:
            # TensorFlow logs the message with this line only, not with the runtime's own frames.
            _failed[:] = [str(error)]
            raise exceptions.HorovodInternalError(str(error)) from None

    make = _python_op if place is not None else tf.numpy_function
    order = None
    if not tf.inside_function():
        from hvdlite.tensorflow.v1 import in_any_order as make
    elif xla.is_available():  # TensorFlow keeps the order of these functions, but not with programs
        order = xla.order_on(place)
    before = [] if order is None else [order.read_value()]
    with tf.device(place or "/cpu:0"), tf.control_dependencies(before):
        results = make(body, [*tensors, *room], list(dtypes))
    if order is not None:
        with tf.control_dependencies(results):
            order.assign(0.0, read_value=False)
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return results


class _Body(script_ops.EagerFunc):
    """A function that TensorFlow calls with eager tensors, as those of `tf.py_function`.

    What it does around those, for autograph and its own gradients, takes as long as the call.
    """

    def __call__(self, device: str, token: bytes, args: Sequence[tf.Tensor]) -> Any:
        return self._call(device, args)


def _python_op(
    function: Callable[..., Any], tensors: list[tf.Tensor], dtypes: list[tf.DType]
) -> list[tf.Tensor]:
    """`tf.py_function`, at half of its price."""
    body = _Body(function, dtypes, False)
    xla.keep(body)
    token = script_ops._py_funcs.insert(body)
    return tf.raw_ops.EagerPyFunc(input=tensors, token=token, Tout=dtypes)


def name_of(kind: str, name: str | None) -> str | None:
    """The name of a call in the graph in the making, or None to count calls as they are made.

    A graph of TensorFlow 1 may run its operations in any order, so their names are fixed when it
    is made. A tf.function keeps the order but may be traced a second time on one rank only, so
    there the calls are counted when they are made.
    """
    if tf.executing_eagerly() or tf.inside_function():
        return name
    return tf.compat.v1.get_default_graph().unique_name(name or kind, mark_as_used=True)
