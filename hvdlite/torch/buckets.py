"""Buckets of torch gradients. After the reduction each `.grad` is a view of the buffer.

A gradient is copied once, when the backward pass has made it, and never again.
"""

import math
from collections.abc import Sequence

import torch

from hvdlite import buckets
from hvdlite.shared_memory import Segment
from hvdlite.torch.tensors import from_array, numpy_dtype


class Bucket(buckets.Bucket):
    """A flat buffer for the gradients of some parameters, and what there is of them on each rank.

    Behind the gradients stands one element for each parameter: 1 where this rank has a gradient,
    0 where it has none, which counts as a gradient of zeros. After the sum it tells whether any
    rank had one.
    """

    def __init__(self, params: Sequence[torch.Tensor], dtype: torch.dtype):
        self.params = list(params)
        self.torch_dtype = dtype
        self.views: list[torch.Tensor] = []
        self._index = {id(param): i for i, param in enumerate(self.params)}
        super().__init__([p.shape for p in self.params], numpy_dtype(dtype), len(self.params))

    def place(self, segment: Segment | None) -> None:
        super().place(segment)
        self._lay_out(from_array(self.flat))

    def _lay_out(self, buffer: torch.Tensor) -> None:
        self.views = []
        for i, param in enumerate(self.params):
            if param.is_contiguous() or not _is_dense(param):
                stride = torch.empty(param.shape, device="meta").stride()
            else:
                stride = param.stride()  # channels_last and its like: no change of layout
            self.views.append(buffer.as_strided(param.shape, stride, self.starts[i]))

    def put(self, param: torch.Tensor) -> None:
        """Copy the parameter's gradient into the buffer, which makes it the gradient."""
        view = self.views[self._index[id(param)]]
        grad = param.grad.to_dense() if param.grad.is_sparse else param.grad
        if grad.data_ptr() == view.data_ptr():
            return
        view.copy_(grad)
        if self._shares(param):
            param.grad = view

    def put_early(self, param: torch.Tensor) -> bool:
        """`put`, if that makes the buffer the gradient; a mere copy could become outdated.

        Returns whether the bucket is full and should be reduced at once.
        """
        if self._shares(param) and not param.grad.is_sparse:
            self.put(param)
        return False

    def _shares(self, param: torch.Tensor) -> bool:
        """Whether a view of the buffer can be the parameter's gradient."""
        return param.dtype == self.torch_dtype and param.is_cpu

    def fill(self) -> None:
        """Bring in what no hook has brought, and note which gradients there are."""
        self.extra[:] = 1
        for i, param in enumerate(self.params):
            if param.grad is None:
                self.views[i].zero_()
                self.extra[i] = 0
            else:
                self.put(param)

    def settle(self) -> None:
        """Let what follows come after the reduction, whose results may be wanted or not."""

    def take(self) -> None:
        """Make the reduced gradients the parameters' own, where any rank had one."""
        for param, view, there in zip(self.params, self.views, self.extra, strict=True):
            if param.grad is None and there == 0:
                continue
            if self._shares(param):
                param.grad = view
            elif param.grad is None:
                param.grad = view.to(param.device, param.dtype)
            else:
                param.grad.copy_(view)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order."""
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, length in order:
        if length != 1 and stride != expected:
            return False
        expected *= length
    return expected == math.prod(tensor.shape)
