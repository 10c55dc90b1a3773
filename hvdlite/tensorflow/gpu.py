"""TensorFlow's tensors on a GPU as arrays that NCCL reads and writes.

A call goes into the stream that TensorFlow computes on, behind what makes its tensors, and neither
the host nor the GPU waits for the other. Only XLA shows that stream; see `xla`.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from hvdlite.gpu import cuda
from hvdlite.tensorflow import internals

# Those that NCCL has; int32 lives in host memory also where TensorFlow says GPU.
_DTYPES = (
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
    *(tf.int8, tf.uint8, tf.int16, tf.int64, tf.uint64),
)


class _Call(threading.local):
    """What this thread's call works with."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.tensors: dict[int, tf.Tensor] = {}  # by their addresses
        self.results: list[np.ndarray] = []  # memory that waits for them


_call = _Call()


def device_for(tensors: Sequence[tf.Tensor]) -> str | None:
    """The device whose memory the collective is to be done in; None for the host's.

    It follows from the program, so that all ranks come to the same. In a tf.function, TensorFlow
    has placed few of the tensors yet; the others go where gradients and variables are.
    """
    if not (tf.executing_eagerly() or tf.inside_function()):
        return None  # a graph of TensorFlow 1
    if not tensors or not all(tensor.dtype in _DTYPES for tensor in tensors) or not is_there():
        return None
    if tf.executing_eagerly():
        places = {tensor.backing_device for tensor in tensors}
    else:
        places = {tensor.device for tensor in tensors if tensor.device} or {scope() or "GPU:0"}
    return f"GPU:{max(places)[-1]}" if len(places) == 1 and "GPU" in max(places) else None


def scope() -> str:
    """The device that `with tf.device` asks for around the graph in the making, or "".

    A tf.function does not see a scope around its call, which is that of the eager code there.
    """
    asked = (tf.no_op().device or context.context().device_name or "").upper()
    _, kind, number = asked.rpartition("GPU:")
    return kind + number if kind else "CPU:" + asked.rpartition("CPU:")[2] if asked else ""


@functools.cache
def is_there() -> bool:
    """Whether TensorFlow sees a GPU, and all is there to work on its memory, in its stream."""
    known = internals.knows_addresses() and internals.has_registry() and cuda.cupy() is not None
    return known and bool(tf.config.list_logical_devices("GPU"))


def run(
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[tf.Tensor],
    stream: Any,
    room: Sequence[tf.Tensor] = (),
) -> list[tf.Tensor]:
    """The tensors that `function` makes of arrays on the tensors' memory.

    The work goes into `stream`, in which TensorFlow makes the tensors. Those of `room` are for
    results: to make one in here takes as long as a small collective.
    """
    arrays, spare = list(map(_as_array, tensors)), list(map(_as_array, room))
    device = next(each.device for each in arrays if not isinstance(each, np.ndarray))
    held = zip([*arrays, *spare], [*tensors, *room], strict=True)
    _call.tensors = {a.data.ptr: tensor for a, tensor in held if not isinstance(a, np.ndarray)}
    _call.stream, _call.results = stream, spare
    try:
        with device, stream:
            return list(map(_as_tensor, function(*arrays)))
    finally:
        _call.tensors, _call.results = {}, []  # memory that others may have now


def run_on(
    pointer: int,
    function: Callable[..., None],
    buffers: Sequence[tuple[int, tuple[int, ...], np.dtype]],
    results: int,
) -> None:
    """Let `function` put its work into the stream behind a cudaStream_t.

    It is called with arrays on the memory of `buffers`, each an address, a shape and a dtype. The
    last ones, so many as there are `results`, are also what `empty_like` takes from.
    """
    number = _device_of(next(address for address, *_ in buffers if address))
    arrays = [cuda.array(*buffer, None, number) for buffer in buffers]
    _call.stream, _call.results = cuda.stream(pointer), arrays[len(arrays) - results :]
    with cuda.cupy().cuda.Device(number), _call.stream:
        function(*arrays)


def _device_of(address: int) -> int:
    """CUDA's number of the GPU whose memory this is."""
    return cuda.cupy().cuda.runtime.pointerGetAttributes(address).device


def device_of(array: np.ndarray) -> cuda.Device:
    """What a call on such an array runs on."""
    if isinstance(array, np.ndarray):
        return cuda.CPU
    stream = _call.stream
    return cuda.Device(cuda.NAME, stream, lambda: stream.ptr)


def empty_like(array: np.ndarray) -> np.ndarray:
    """Room for a result; where it is on a GPU, in TensorFlow's memory."""
    if isinstance(array, np.ndarray):
        return np.empty_like(array, order="C")
    for i, result in enumerate(_call.results):
        if result.shape == array.shape and result.dtype == array.dtype:
            return _call.results.pop(i)
    with tf.device(_names[array.data.device_id]):
        tensor = room(array.shape, tf.as_dtype(array.dtype))
    result = _as_array(tensor)
    _call.tensors[result.data.ptr] = tensor
    return result


def room(shape: Any, dtype: tf.DType) -> tf.Tensor:
    """A tensor with any numbers, where tf.device says."""
    if dtype != tf.int16:
        return tf.raw_ops.Empty(shape=shape, dtype=dtype)
    return tf.bitcast(tf.raw_ops.Empty(shape=shape, dtype=tf.float16), dtype)  # GPUs lack its Empty


def copy_of(array: np.ndarray) -> np.ndarray:
    """The same numbers in an array of one's own."""
    copy = empty_like(array)
    copy[...] = array
    return copy


def _as_array(tensor: tf.Tensor) -> np.ndarray:
    if "GPU" not in tensor.backing_device:
        return np.asarray(tensor)
    number = _number(tensor.backing_device)
    dtype = np.dtype(tensor.dtype.as_numpy_dtype)
    return cuda.array(internals.address_of(tensor), tensor.shape, dtype, tensor, number)


def _as_tensor(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return tf.convert_to_tensor(result)
    tensor = _call.tensors.get(result.data.ptr)
    if tensor is None or tuple(tensor.shape) != result.shape:
        copy = copy_of(result)
        tensor = _call.tensors[copy.data.ptr]
    return tensor


_names: dict[int, str] = {}  # TensorFlow's names of the GPUs, by CUDA's number


@functools.cache
def _number(name: str) -> int:
    """CUDA's number of a GPU of TensorFlow's."""
    with tf.device(name):
        one = tf.ones(1)
    number = _device_of(internals.address_of(one))
    _names[number] = name
    return number
