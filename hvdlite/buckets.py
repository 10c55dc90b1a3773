"""Gradient buckets: all gradients of one dtype in one flat buffer, reduced in one call.

On one host the buffer lies in shared memory, so that a reduction moves nothing but the buffer.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from hvdlite.basics import engine
from hvdlite.gpu import CPU
from hvdlite.request import Descriptor, Request, digest, dtype_name
from hvdlite.shared_memory import Segment

_ALIGN = 16  # elements; each gradient begins on a cache line


class Bucket:
    """A flat buffer for gradients of the given shapes and one dtype.

    Behind the gradients there is room for `extra` elements, which are reduced with them.
    """

    device = CPU.name

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: np.dtype, extra: int = 0):
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.dtype = np.dtype(dtype)
        self._sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        padded = (-(-size // _ALIGN) * _ALIGN for size in self._sizes)
        *self.starts, self._extra_start = accumulate(padded, initial=0)  # of each in the buffer
        self.count = self._extra_start + extra
        self.rows: list[np.ndarray] | None = None

    def place(self, segment: Segment | None) -> None:
        """Put the buffer into this rank's row of shared memory, or into its own memory."""
        if segment is None:
            self.flat = np.zeros(self.count, dtype=self.dtype)
        else:
            self.rows = [row.view(self.dtype) for row in segment.rows]
            self.flat = self.rows[segment.index]
        self.extra = self.flat[self._extra_start :]

    def piece(self, i: int) -> np.ndarray:
        """Gradient `i` as an array of its shape, a view of the buffer."""
        start = self.starts[i]
        return self.flat[start : start + self._sizes[i]].reshape(self.shapes[i])

    def request(
        self,
        name: str,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        members: Sequence[str] = (),
    ) -> Request:
        """The allreduce of the whole buffer; `members` names its gradients."""
        shapes = ((self.count,),)
        dtype = dtype_name(self.dtype)
        scales = prescale, postscale
        descriptor = Descriptor(
            "allreduce", name, op, dtype, shapes, -1, *scales, self.device, packed=True
        )
        arrays = (self.flat,)
        return Request(descriptor, arrays, arrays, shared_rows=self.rows, members=members)

    def allocation(self, name: str, kind: str = "allocate") -> Request:
        """The request for the buffer's memory, for which the ranks must agree on the shapes."""
        nbytes = self.count * self.dtype.itemsize
        layout = (digest(self.shapes), self.dtype.name)
        return Request(Descriptor(kind, name, shapes=((nbytes,), layout)))


def place(buckets: Sequence[Bucket], name: str, set_id: int) -> None:
    """Give buckets their memory; all ranks of the set call it with the same layout."""
    current = engine()
    requests = [bucket.allocation(f"{name}.{i}") for i, bucket in enumerate(buckets)]
    current.submit(requests, set_id)
    for bucket, request in zip(buckets, requests, strict=True):
        current.wait(request, set_id)
        bucket.place(request.result)
