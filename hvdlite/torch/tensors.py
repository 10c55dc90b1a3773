"""Torch tensors as the flat numpy arrays that the engine moves, without a copy where possible."""

import functools

import ml_dtypes
import numpy as np
import torch

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def flat_array(tensor: torch.Tensor) -> np.ndarray:
    """A flat numpy view of a contiguous CPU tensor; writing to it writes to the tensor."""
    flat = tensor.detach().view(-1)
    if tensor.dtype is torch.bfloat16:
        return flat.view(torch.int16).numpy().view(_BFLOAT16)
    return flat.numpy()


def from_array(array: np.ndarray) -> torch.Tensor:
    """A flat CPU tensor on the memory of a flat numpy array."""
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


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, as descriptors and numpy have it."""
    return numpy_dtype(dtype).name


class Host:
    """A tensor's place in host memory for the time of a collective.

    `array` is flat and contiguous. It is the tensor's own memory where that is a contiguous CPU
    tensor, and a copy where it is not (another device, a strided view); `give_back` then writes
    the result into the tensor.
    """

    __slots__ = ("_copy", "array", "tensor")

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        self._copy = None
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            self._copy = tensor.detach().to("cpu", copy=True).contiguous()
        self.array = flat_array(tensor if self._copy is None else self._copy)

    def give_back(self) -> None:
        if self._copy is not None:
            self.tensor.detach().copy_(self._copy)
