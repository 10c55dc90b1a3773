"""Gradient buckets: gradients of one dtype in one flat buffer, reduced in one call.

On one host the buffer lies in shared memory, so that a reduction moves nothing but the buffer.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from hvdlite.gpu.cuda import CPU
from hvdlite.memory.shared_memory import Segment
from hvdlite.request import Descriptor, Request, dtype_name

_ALIGN = 16  # elements; each gradient begins on a cache line


class Gradient(NamedTuple):
    """What is to be known of a gradient before it is there."""

    name: str  # for messages and the timeline; may differ between ranks
    shape: tuple[int, ...]
    dtype: np.dtype  # that it is sent as
    device: str = CPU.name

    @property
    def form(self) -> str:
        """What must be the same on all ranks, as a message shows it."""
        return f"{dtype_name(self.dtype)} of shape {self.shape}"


class Bucket:
    """A flat buffer for some gradients of a list, which are of one dtype and on one device.

    Behind the gradients stands a number for each of them, its presence, which is reduced with
    them. So all ranks know afterwards what there was of it on any of them.
    """

    def __init__(self, gradients: Sequence[Gradient], members: Sequence[int]):
        self.members = list(members)  # positions in the list of all gradients
        self._gradients = [gradients[i] for i in members]
        self.dtype, self.device = self._gradients[0].dtype, self._gradients[0].device
        self._sizes = [int(np.prod(each.shape, dtype=np.int64)) for each in self._gradients]
        padded = (-(-size // _ALIGN) * _ALIGN for size in self._sizes)
        *self.starts, self._presence_start = accumulate(padded, initial=0)
        self.count = self._presence_start + len(self.members)
        self._rows: Sequence[np.ndarray] | None = None

    def place(self, segment: Segment | None) -> None:
        """Put the buffer into this rank's row of shared memory, or into its own memory."""
        if segment is None:
            self.use(np.zeros(self.count, dtype=self.dtype))
        else:
            self._rows = [row.view(self.dtype) for row in segment.rows]
            self.use(self._rows[segment.index])

    def use(self, flat: np.ndarray) -> None:
        """Take an array of `count` elements for the buffer."""
        self.flat = flat
        self.presence = flat[self._presence_start :]

    def piece(self, k: int) -> np.ndarray:
        """The k-th gradient of the bucket as an array of its shape, a view of the buffer."""
        start = self.starts[k]
        return self.flat[start : start + self._sizes[k]].reshape(self._gradients[k].shape)

    def request(self, name: str, op: int, scales: tuple[float, float], traced: bool) -> Request:
        """The allreduce of the whole buffer; `traced` if a timeline is to show its gradients."""
        dtype, shapes = dtype_name(self.dtype), ((self.count,),)
        descriptor = Descriptor(
            "allreduce", name, op, dtype, shapes, -1, *scales, self.device, packed=True
        )
        members = [f"allreduce.{each.name}" for each in self._gradients] if traced else ()
        arrays = (self.flat,)
        return Request(descriptor, arrays, arrays, shared_rows=self._rows, members=members)

    def allocation(self, name: str) -> Request:
        """The request for the buffer's memory."""
        nbytes = self.count * self.dtype.itemsize
        return Request(Descriptor("allocate", name, shapes=((nbytes,), (dtype_name(self.dtype),))))


def by_dtype(gradients: Sequence[Gradient], positions: Sequence[int]) -> list[list[int]]:
    """Those of the gradients at these positions that can share a bucket."""
    alike: dict[tuple, list[int]] = {}
    for i in positions:
        alike.setdefault((gradients[i].dtype, gradients[i].device), []).append(i)
    return list(alike.values())
