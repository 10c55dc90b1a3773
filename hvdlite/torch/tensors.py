"""Torch tensors as the arrays that the engine moves, without a copy where possible."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from hvdlite.exceptions import HorovodInternalError
from hvdlite.gpu import cuda

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor as an array; writing to it writes to the tensor."""
    if tensor.is_cuda:
        pointer, dtype = tensor.data_ptr(), _NUMPY_DTYPES[tensor.dtype]
        return cuda.array(pointer, tensor.shape, dtype, tensor, tensor.get_device())
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


def from_array(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of a contiguous array."""
    if not isinstance(array, np.ndarray):
        return torch.from_dlpack(array)
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


_NUMPY_DTYPES = {
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: _BFLOAT16,
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.bool: np.dtype(np.bool_),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of a torch dtype; raises ValueError if collectives don't know it."""
    try:
        return _NUMPY_DTYPES[dtype]
    except KeyError:
        raise ValueError(f"collectives don't support tensors of {dtype}") from None


def current_stream(device: torch.device) -> cuda.Device:
    """What a call on tensors of a device runs on: for GPUs the stream current now."""
    if device.type == "cpu":
        return cuda.CPU
    if device.type != "cuda" or cuda.cupy() is None:
        return cuda.Device(f"{device.type}, by way of the CPU")
    current = _current_of(device.index)
    return cuda.Device(cuda.NAME, cuda.stream(current()), current)


@functools.cache
def _current_of(number: int) -> Callable[[], int]:
    # torch.cuda.current_stream() takes longer than all of a small collective.
    return functools.partial(torch._C._cuda_getCurrentRawStream, number)


class Place:
    """A tensor's memory for the time of a collective.

    `array` is contiguous. It is the tensor's own memory where that is contiguous, not that of
    conjugated or negated numbers, and on the CPU or within reach of CuPy. Else it is a copy, and
    `give_back` writes the result into the tensor, which it returns.
    """

    __slots__ = ("_copy", "array", "tensor")

    def __init__(self, tensor: torch.Tensor, device: cuda.Device):
        self.tensor = tensor
        self._copy = None
        stays = tensor.is_cpu or tensor.device.type == device.name
        as_it_is = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        if not stays or not as_it_is:
            where = tensor.device if stays else "cpu"
            copy = tensor.detach().to(where, copy=True).contiguous()
            self._copy = copy.resolve_neg().resolve_conj()
        self.array = as_array(tensor if self._copy is None else self._copy)

    def give_back(self) -> torch.Tensor:
        if self._copy is not None:
            self.tensor.detach().copy_(self._copy)
        return self.tensor


def check_tensor(tensor: Any, kind: str) -> None:
    """Raise TypeError for what is no tensor, ValueError for one that can't be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{kind} takes a torch.Tensor, not {type(tensor).__name__}: {tensor!r:.60}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{kind} takes a dense tensor; this one is {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"{kind} takes a tensor with data; this one is on the meta device")
    numpy_dtype(tensor.dtype)


def places(tensors: Sequence[torch.Tensor], kind: str) -> tuple[list[Place], cuda.Device]:
    """The tensors' places in memory, and the device that they are on."""
    for tensor in tensors:
        check_tensor(tensor, kind)
    elsewhere = [tensor.device for tensor in tensors if not tensor.is_cpu]
    if elsewhere and (len(elsewhere) < len(tensors) or len(set(elsewhere)) > 1):
        raise HorovodInternalError(
            f"{kind}: the tensors of a group must all be on the CPU, or all on one GPU"
        )
    device = current_stream(elsewhere[0]) if elsewhere else cuda.CPU
    return [Place(tensor, device) for tensor in tensors], device
