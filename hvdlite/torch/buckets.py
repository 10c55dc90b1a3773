"""Gradient buckets: all gradients of one dtype in one flat buffer, reduced in one call.

On one host the buffer lies in shared memory, and after the reduction each `.grad` is a view of
it: the gradient is copied once, when the backward pass has made it, and never again.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from hvdlite.basics import engine
from hvdlite.fusion import slices
from hvdlite.request import Descriptor, Request, digest
from hvdlite.shared_memory import Segment
from hvdlite.torch.tensors import flat_array, from_array, numpy_dtype

_LARGE = 1 << 18  # elements of which a copy is worth saving
_ALIGN = 16  # elements; each gradient begins on a cache line


class Bucket:
    """A flat buffer for the gradients of some parameters, and what there is of them on each rank.

    Behind the gradients stands one element for each parameter: 1 where this rank has a gradient,
    0 where it has none, which counts as a gradient of zeros. After the sum it tells whether any
    rank had one.
    """

    def __init__(self, params: Sequence[torch.Tensor], dtype: torch.dtype):
        self.params = list(params)
        self.dtype = dtype
        self._starts, end = [], 0
        for param in self.params:
            self._starts.append(end)
            end += -(-param.numel() // _ALIGN) * _ALIGN
        self._flags_start = end
        self.count = end + len(self.params)
        self.rows: list[np.ndarray] | None = None
        self.views: list[torch.Tensor] = []
        self._index = {id(param): i for i, param in enumerate(self.params)}

    @property
    def shapes(self) -> tuple:
        """What must be equal on all ranks: the parameters' shapes, in order."""
        return tuple(tuple(param.shape) for param in self.params)

    def place(self, segment: Segment | None, takes_own: bool) -> None:
        """Put the buffer into this rank's row of shared memory, or into its own memory.

        With `takes_own`, what this rank reduces itself may stay out of the buffer till then.
        """
        dtype = numpy_dtype(self.dtype)
        self._segment = segment
        self._slice = slice(0, 0)
        if segment is not None and takes_own:
            self._slice = slices(self.count, len(segment.rows))[segment.index]
        if segment is None:
            self.flat = np.zeros(self.count, dtype=dtype)
        else:
            self.rows = [row.view(dtype) for row in segment.rows]
            self.flat = self.rows[segment.index]
        self._buffer = buffer = from_array(self.flat)
        self._own: list[tuple[int, int, np.ndarray]] = []
        self._flags = self.flat[self._flags_start :]
        self.views = []
        for param, start in zip(self.params, self._starts, strict=True):
            if param.is_contiguous() or not _is_dense(param):
                stride = torch.empty(param.shape, device="meta").stride()
            else:
                stride = param.stride()  # channels_last and its like: no change of layout
            self.views.append(buffer.as_strided(param.shape, stride, start))

    def view(self, param: torch.Tensor) -> torch.Tensor:
        return self.views[self._index[id(param)]]

    def put(self, param: torch.Tensor) -> None:
        """Copy the parameter's gradient into the buffer, which makes it the gradient."""
        view = self.view(param)
        grad = param.grad.to_dense() if param.grad.is_sparse else param.grad
        if grad.data_ptr() == view.data_ptr() or self._put_rest(param, grad, view):
            return
        view.copy_(grad)
        if self._shares(param):
            param.grad = view

    def _put_rest(self, param: torch.Tensor, grad: torch.Tensor, view: torch.Tensor) -> bool:
        """Copy of a large gradient only what other ranks reduce, if its layout allows that.

        This rank's slice is read from where it is, which saves a copy.
        """
        start = self._starts[self._index[id(param)]]
        stop = start + param.numel()
        first, last = max(start, self._slice.start), min(stop, self._slice.stop)
        if not self._is_large(param) or grad.stride() != view.stride():
            return False
        flat = grad.as_strided((param.numel(),), (1,))
        self._buffer[start:first] = flat[: first - start]
        self._buffer[last:stop] = flat[last - start :]
        self._own.append((first, last, flat_array(flat[first - start : last - start])))
        return True

    def _is_large(self, param: torch.Tensor) -> bool:
        """Whether much of a parameter's gradient lies in the slice that this rank reduces."""
        start = self._starts[self._index[id(param)]]
        overlap = min(start + param.numel(), self._slice.stop) - max(start, self._slice.start)
        return overlap >= _LARGE and self._shares(param)

    def put_early(self, param: torch.Tensor) -> None:
        """`put`, if that makes the buffer the gradient; a mere copy could become outdated."""
        if self._shares(param) and not param.grad.is_sparse and not self._is_large(param):
            self.put(param)

    def _shares(self, param: torch.Tensor) -> bool:
        """Whether a view of the buffer can be the parameter's gradient."""
        return param.dtype == self.dtype and param.device.type == "cpu"

    def fill(self) -> None:
        """Bring in what no hook has brought, and note which gradients there are."""
        flags = self._flags
        flags[:] = 1
        self._own = []
        for i, param in enumerate(self.params):
            if param.grad is None:
                self.views[i].zero_()
                flags[i] = 0
            else:
                self.put(param)

    def take(self) -> None:
        """Make the reduced gradients the parameters' own, where any rank had one."""
        for i, param in enumerate(self.params):
            if param.grad is None and self._flags[i] == 0:
                continue
            view = self.views[i]
            if self._shares(param):
                param.grad = view
            elif param.grad is None:
                param.grad = view.to(param.device, param.dtype)
            else:
                param.grad.copy_(view)

    def request(
        self,
        name: str,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        members: Sequence[str] = (),
    ) -> Request:
        """The allreduce of the whole buffer; `members` names its gradients."""
        dtype = numpy_dtype(self.dtype)
        shapes = ((self.count,),)
        what = Descriptor("allreduce", name, op, dtype.name, shapes, -1, prescale, postscale)
        return Request(
            what, (self.flat,), (self.flat,), rows=self.rows, item=self._own, members=members
        )

    def allocation(self, name: str) -> Request:
        """The request for the buffer's memory, for which the ranks must agree on the shapes."""
        nbytes = self.count * numpy_dtype(self.dtype).itemsize
        layout = (digest(self.shapes), str(self.dtype))
        return Request(Descriptor("allocate", name, shapes=((nbytes,), layout)))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order."""
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, length in order:
        if length != 1 and stride != expected:
            return False
        expected *= length
    return expected == math.prod(tensor.shape)


def make_buckets(
    params: Sequence[torch.Tensor], wire_dtype: torch.dtype | None, name: str, group: int
) -> list[Bucket]:
    """Sort the parameters into one bucket for each dtype and place these; collective.

    With `wire_dtype`, floating-point gradients are sent as that.
    """
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for param in params:
        dtype = wire_dtype if wire_dtype and param.dtype.is_floating_point else param.dtype
        by_dtype.setdefault(dtype, []).append(param)
    buckets = [Bucket(members, dtype) for dtype, members in by_dtype.items()]
    current = engine()
    requests = [
        current.submit(bucket.allocation(f"{name}.{i}"), group) for i, bucket in enumerate(buckets)
    ]
    for bucket, request in zip(buckets, requests, strict=True):
        current.wait(request, group)
        bucket.place(request.result, current.channels[group].collectives.takes_own)
    return buckets
