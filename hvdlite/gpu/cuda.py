"""Arrays in a GPU's memory: CuPy's, for which the engine needs next to no code of its own.

They have the methods of numpy's arrays, and numpy's functions work on them.
"""

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from hvdlite.request import Request


class Device(NamedTuple):
    """Where a call's arrays are, and the GPU's stream that it is to run on."""

    name: str = "cpu"
    stream: Any = None
    current: Callable[[], int] | None = None  # the address of the caller's current stream


CPU = Device()
NAME = "cuda"  # of the device whose arrays are CuPy's


@functools.cache
def cupy() -> ModuleType | None:
    """CuPy, or None where it, its NCCL or a GPU is missing."""
    try:
        module = importlib.import_module("cupy")
        importlib.import_module("cupy.cuda.nccl").get_version()
    except ImportError:
        return None
    return module if module.cuda.is_available() else None


def array(
    pointer: int, shape: Sequence[int], dtype: np.dtype, owner: Any, number: int
) -> np.ndarray:
    """A contiguous array on memory of GPU `number`, which `owner` keeps alive."""
    cuda, count = cupy().cuda, math.prod(shape)
    memory = cuda.UnownedMemory(pointer, count * dtype.itemsize, owner, number)
    return cupy().ndarray(tuple(shape), dtype, cuda.MemoryPointer(memory, 0))


@functools.cache
def stream(pointer: int) -> Any:
    """The stream behind a cudaStream_t. Within `with`, what is called runs on it."""

    class Pointer:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, pointer

    return cupy().cuda.Stream.from_external(Pointer())


def record(stream: Any, device: int) -> Any:
    """The event of all that a stream of this device has to do so far."""
    with cupy().cuda.Device(device):
        return stream.record(cupy().cuda.Event(disable_timing=True))


def number_of(request: Request) -> int:
    """The number of the GPU that the request's arrays are on."""
    return request.inputs[0].data.device_id


def ready(request: Request) -> Any:
    """The event of the request's arrays being made."""
    return request.event or record(request.stream, number_of(request))


def settle(request: Request) -> None:
    """Let what the caller puts into its current stream next come after the finished request."""
    if request.current is None:
        return
    pointer = request.current()
    if request.event is not None or pointer != request.stream.ptr:
        number = number_of(request)
        with cupy().cuda.Device(number):  # each has a stream 0
            stream(pointer).wait_event(request.event or record(request.stream, number))


def to_host(array: np.ndarray) -> np.ndarray:
    """A copy in host memory."""
    return array.get()


def to_current(array: np.ndarray) -> np.ndarray:
    """A copy on the current GPU of an array on any other."""
    copy = cupy().empty(array.shape, array.dtype)
    copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy


def moved(request: Request, move: Callable[[np.ndarray], np.ndarray]) -> Request:
    """The same call on copies of its arrays."""
    inputs = outputs = [move(each) for each in request.inputs]
    if request.outputs is not request.inputs:
        outputs = [move(each) for each in request.outputs]
    counts, members, joined = request.counts, request.members, request.is_stand_in
    descriptor = request.descriptor
    return Request(descriptor, inputs, outputs, counts, members=members, is_stand_in=joined)


def take_results(request: Request, copies: Request) -> None:
    """Bring to the request's GPU what the call has made of the copies, in the current stream."""
    for each, copy in zip(request.outputs, copies.outputs, strict=True):
        if isinstance(copy, np.ndarray):
            each.set(copy)
        else:
            each.data.copy_from_device_async(copy.data, copy.nbytes)
    number = number_of(request)
    if isinstance(copies.result, tuple):  # the data, and the numbers of rows
        request.result = _on(number, copies.result[0]), *copies.result[1:]
    elif copies.result is not None:
        request.result = _on(number, copies.result)


def _on(number: int, array: np.ndarray) -> np.ndarray:
    """A copy on GPU `number`, made in the current stream."""
    with cupy().cuda.Device(number):
        copy = cupy().empty(array.shape, array.dtype)
    if isinstance(array, np.ndarray):
        copy.set(array)
    else:
        copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy
