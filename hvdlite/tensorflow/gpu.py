"""TensorFlow's tensors on a GPU as arrays that NCCL reads and writes.

In eager code TensorFlow does not show the stream that it computes on. So it is waited for before a
call, which DLPack does, and the call is waited for before TensorFlow goes on. The addresses come
from DLPack, the number of the GPU from CUDA: TensorFlow counts the GPUs that are visible to it.
In a tf.function it is XLA that calls, with its stream and the addresses; see `xla`.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.gpu import cuda

# Those that DLPack and NCCL have; int32 lives in host memory also where TensorFlow says GPU.
_DTYPES = (
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
    *(tf.int8, tf.uint8, tf.int16, tf.int64, tf.uint64),
)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


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
    if not tensors or not all(tensor.dtype in _DTYPES for tensor in tensors) or not is_there():
        return None
    if tf.executing_eagerly():
        places = {tensor.backing_device for tensor in tensors}
    elif tf.inside_function():
        places = {tensor.device for tensor in tensors if tensor.device} or {scope() or "GPU:0"}
    else:
        return None  # a graph of TensorFlow 1
    return f"GPU:{max(places)[-1]}" if len(places) == 1 and "GPU" in max(places) else None


def scope() -> str:
    """The device that `with tf.device` asks for around the graph in the making, or ""."""
    _, kind, number = tf.no_op().device.upper().rpartition("GPU:")
    return kind + number if kind else "CPU:0" if tf.no_op().device else ""


@functools.cache
def is_there() -> bool:
    """Whether TensorFlow sees a GPU, and CuPy and NCCL are there to work on it."""
    return bool(tf.config.list_logical_devices("GPU")) and cuda.cupy() is not None


def run(function: Callable[..., Sequence[Any]], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors that `function` makes of arrays on the tensors' memory."""
    for stream in _computing.values():  # DLPack would hold Python's lock while it waits
        stream.synchronize()
    arrays = list(map(_as_array, tensors))
    on_gpu = [i for i, array in enumerate(arrays) if not isinstance(array, np.ndarray)]
    device = arrays[on_gpu[0]].device
    _call.tensors = {arrays[i].data.ptr: tensors[i] for i in on_gpu}
    _call.stream, _call.results = _stream(device.id), []
    with device, _call.stream:
        results = list(map(_as_tensor, function(*arrays)))
    _call.stream.synchronize()
    return results


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
    _computing[number] = _call.stream
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
        tensor = tf.raw_ops.Empty(shape=array.shape, dtype=tf.as_dtype(array.dtype))
    result = _as_array(tensor)
    _call.tensors[result.data.ptr] = tensor
    return result


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
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    return cuda.array(_address(capsule), tensor.shape, dtype, (tensor, capsule), number)


def _address(capsule: Any) -> int:
    held = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    return (held.data or 0) + held.offset


def _as_tensor(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return tf.convert_to_tensor(result)
    tensor = _call.tensors.get(result.data.ptr)
    if tensor is None or tuple(tensor.shape) != result.shape:
        copy = copy_of(result)
        tensor = _call.tensors[copy.data.ptr]
    return tensor


_computing: dict[int, Any] = {}  # TensorFlow's own streams, as far as XLA has shown them
_names: dict[int, str] = {}  # TensorFlow's names of the GPUs, by CUDA's number


@functools.cache
def _number(name: str) -> int:
    """CUDA's number of a GPU of TensorFlow's."""
    with tf.device(name):
        capsule = tf.experimental.dlpack.to_dlpack(tf.ones(1))
    number = _device_of(_address(capsule))
    _names[number] = name
    return number


@functools.cache
def _stream(number: int) -> Any:
    with cuda.cupy().cuda.Device(number):
        own = cuda.cupy().cuda.Stream(non_blocking=True)
    _streams.append(own)
    return cuda.stream(own.ptr)


_streams: list[Any] = []  # which end with their objects
