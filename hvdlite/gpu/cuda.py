"""Arrays in a GPU's memory: CuPy's, for which the engine needs next to no code of its own.

They have the methods of numpy's arrays, and numpy's functions work on them.
"""

import functools
import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from hvdlite.request import Request


class Device(NamedTuple):
    """Where a call's arrays are, and the GPU's stream that it is to run on."""

    name: str = "cpu"
    stream: Any = None


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


def in_host_memory(request: Request) -> Request:
    """The same call on copies of its arrays."""
    inputs = outputs = [each.get() for each in request.inputs]
    if request.outputs is not request.inputs:
        outputs = [each.get() for each in request.outputs]
    counts, members, joined = request.counts, request.members, request.is_stand_in
    what = request.descriptor
    return Request(what, inputs, outputs, counts, members=members, is_stand_in=joined)


def take_results(request: Request, copies: Request) -> None:
    """Bring to the GPU what the call has made of the copies."""
    for each, copy in zip(request.outputs, copies.outputs, strict=True):
        each.set(copy)
    request.result = copies.result
    if isinstance(request.result, np.ndarray):
        request.result = cupy().asarray(request.result)
    elif isinstance(request.result, tuple):  # the data, and the numbers of rows
        request.result = cupy().asarray(request.result[0]), *request.result[1:]
