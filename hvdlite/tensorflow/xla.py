"""Collectives inside programs that XLA compiles: calls from the program back to Python.

XLA can't compile a Python function, but it can call a function of C by its name, a "custom call".
Here that function is a callback of ctypes. On a GPU it is given the stream that XLA computes on,
puts the collective into it and returns, so that neither the host nor the GPU waits for the other.

TensorFlow's wheel exports the table in which XLA looks for the names, `CustomCallTargetRegistry`
of xla/service/custom_call_target_registry.h, and no function of C for it; see `internals`. A
TensorFlow without it is one where XLA is not available here.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvdlite.gpu import cuda
from hvdlite.tensorflow import gpu, internals

_TARGET = b"hvdlite.collective"
# On the host the first argument is where the results go; on a GPU it is the stream, and the
# results' addresses follow those of the operands. Then come opaque bytes, and the status.
_Handler = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_size_t,
    ctypes.c_void_p,
)  # fmt: skip


class _Status(ctypes.Structure):
    """XlaCustomCallStatus, which is a std::optional<std::string>: the message of a failure."""

    _fields_ = (("message", internals.String), ("failed", ctypes.c_bool))


class Body:
    """A function that a program calls with the arrays of its operands; see `custom_call`."""

    def __init__(
        self, function: Callable[..., Sequence[Any]], operands: list, results: list, on_gpu: bool
    ):
        self.function, self.operands, self.results = function, operands, results
        self.on_gpu = on_gpu


class _Layout(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


# Programs name their bodies by number. A body lives as long as a graph that has it.
_bodies: "weakref.WeakValueDictionary[int, Body]" = weakref.WeakValueDictionary()
_numbers = itertools.count()
FAILED = "hvdlite failed"  # of at most 15 characters, see `String`
_own = threading.local()
failed: list[BaseException] = []  # what the last collective raised that failed inside a program


@functools.cache
def is_available() -> bool:
    """Whether programs of XLA can call back here; on a GPU, only with CuPy."""
    if not internals.has_registry():
        return False
    internals.register(_TARGET, b"Host", _on_host)
    internals.register(_TARGET, b"CUDA", _on_gpu)
    return cuda.cupy() is not None or not tf.config.get_visible_devices("GPU")


# Tracing


def is_compiling() -> bool:
    """Whether the function in the making will be compiled by XLA, on its own or within another."""
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def custom_call(
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[Any],
    place: str | None,
) -> list[tf.Tensor]:
    """Let the program in the making call `function`; see `graph.call`.

    Without `place` it gets arrays in host memory, wherever the program runs. Raises ValueError for
    shapes that are not known yet, since XLA needs all of them.
    """
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    shapes = [tf.TensorShape(shape) for shape in shapes]
    if not all(each.is_fully_defined() for each in (*shapes, *(t.shape for t in tensors))):
        raise ValueError(
            "XLA has to know all shapes when it compiles, and this collective call has a tensor "
            "or a result whose shape is only known when it runs: make the call outside of the "
            "function with jit_compile=True, or give the function tensors of fixed shapes"
        )
    operands = [_Layout(tuple(t.shape), np.dtype(t.dtype.as_numpy_dtype)) for t in tensors]
    results = [
        _Layout(tuple(shape), np.dtype(dtype.as_numpy_dtype))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    number = next(_numbers)
    _bodies[number] = body = Body(function, operands, results, place is not None)
    keep(body)
    order = order_on(place)
    last = tf.zeros([]) if order is None else order.read_value()
    *tensors_made, last = gen_xla_ops.xla_custom_call_v2(
        [*tensors, last],
        _TARGET.decode(),
        str(number),
        has_side_effect=True,
        result_dtypes=[*dtypes, tf.float32],
        result_shapes=[*shapes, []],
    )
    if order is not None:
        order.assign(last)
    return tensors_made


def keep(body: Any) -> None:
    """Let it live as long as the graph in the making, and those around that."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        graph._hvdlite_bodies = [*getattr(graph, "_hvdlite_bodies", ()), body]
        outer = getattr(graph, "outer_graph", None)
        graph = outer if getattr(outer, "building_function", False) else None


def order_on(place: str | None) -> Any:
    """A number on a device that each of this thread's calls in graphs reads and writes anew.

    So TensorFlow and XLA keep the calls in their order, also those whose results nobody uses.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():  # a graph of TensorFlow 1, where nobody would initialize it
            return None
    place = place or gpu.scope() or ("GPU:0" if gpu.is_there() else "CPU:0")
    held = vars(_own).setdefault("orders", {})
    if place not in held:
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable

        with tf.init_scope(), tf.device(place):  # a tf.function may not make a tf.Variable
            held[place] = ResourceVariable(0.0, trainable=False)
    return held[place]


@functools.cache
def stream(place: str) -> Any:
    """The stream that TensorFlow computes on there, as a program is shown it."""
    found = []

    def note(array: Any) -> list[Any]:
        found.append(gpu.device_of(array).stream)
        return [array]

    def program(number: tf.Tensor) -> list[tf.Tensor]:
        return custom_call(note, [number], [number.dtype], [number.shape], place)

    with tf.init_scope(), tf.device(place):
        is_available()  # which makes the call known to XLA
        tf.function(program, jit_compile=True)(tf.zeros([]))
    return found[0]


# Running


def _run(body: Body, operands: Sequence[Any], results: Sequence[Any]) -> None:
    if not body.on_gpu:
        operands = [each if isinstance(each, np.ndarray) else each.get() for each in operands]
    for result, made in zip(results, body.function(*operands), strict=True):
        if result is made:
            continue
        if isinstance(result, np.ndarray) or not isinstance(made, np.ndarray | np.generic):
            result[...] = made
        else:
            result.set(np.asarray(made))


@contextlib.contextmanager
def _noting_failure(status: int) -> Iterator[None]:
    """What is raised within becomes the failure of the program, and is kept."""
    try:
        yield
    except BaseException as error:
        failed[:] = [error]
        noted = _Status.from_address(status)
        noted.message.own, noted.message.size = FAILED.encode(), len(FAILED)
        noted.message.data = ctypes.addressof(noted.message) + internals.String.own.offset
        noted.failed = True


@_Handler
def _on_host(outputs: int, inputs: Any, opaque: int, size: int, status: int) -> None:
    with _noting_failure(status):
        body = _bodies[int(ctypes.string_at(opaque, size))]
        into = ctypes.cast(outputs, ctypes.POINTER(ctypes.c_void_p))
        operands = [_host_array(inputs[i], each) for i, each in enumerate(body.operands)]
        results = [_host_array(into[i], each) for i, each in enumerate(body.results)]
        _run(body, operands, results)


def _host_array(address: int, layout: _Layout) -> np.ndarray:
    count = math.prod(layout.shape) * layout.dtype.itemsize
    if count == 0:
        return np.empty(layout.shape, layout.dtype)
    memory = (ctypes.c_byte * count).from_address(address)
    return np.frombuffer(memory, layout.dtype).reshape(layout.shape)


@_Handler
def _on_gpu(stream: int, buffers: Any, opaque: int, size: int, status: int) -> None:
    with _noting_failure(status):
        body = _bodies[int(ctypes.string_at(opaque, size))]
        addresses = buffers[: len(body.operands) + 1 + len(body.results)]
        layouts = [*body.operands, _Layout((), np.dtype(np.float32)), *body.results]
        where = [(a or 0, *each) for a, each in zip(addresses, layouts, strict=True)]
        count = len(body.operands)
        gpu.run_on(
            stream or 0,
            lambda *arrays: _run(body, arrays[:count], arrays[count + 1 :]),
            where,
            len(body.results),
        )
