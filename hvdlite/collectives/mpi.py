"""The MPI library's own collectives, non-blocking, so that a wait can be interrupted."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from hvdlite.fusion import stretches
from hvdlite.groups import Group
from hvdlite.reduction import Finish, accumulator
from hvdlite.request import AVERAGE, MAX, MIN, PRODUCT, SUM, Request
from hvdlite.shared_memory import Segment

if TYPE_CHECKING:
    from mpi4py import MPI

# MPI counts are C ints, and some libraries are slow or wrong near their limit.
LARGEST_COUNT = 1 << 30


class MPICollectives:
    """Works on every network and for every group; the fall-back for all that others can't do.

    It is also the interface of all algorithms. The engine calls a method on all ranks of the group
    once they have agreed on it, with flat contiguous arrays of the same dtype. Each waits
    interruptibly and raises HorovodInternalError when a rank is lost meanwhile.

    `staged` are the ranks' rows where the last `stage` has put the data of all its calls, empty if
    it has not.
    """

    name = "mpi"
    staged: Sequence[np.ndarray] = ()

    def __init__(self, group: Group):
        from mpi4py import MPI

        self.group = group
        self.comm = group.comm.Dup()
        self._ops = {SUM: MPI.SUM, AVERAGE: MPI.SUM, MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}
        self._in_place = MPI.IN_PLACE

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        """Reduce `buffer` in place over all ranks; bit-equal on all of them afterwards."""
        # Halves are added up in float32 and rounded once.
        work = buffer.astype(accumulator(buffer.dtype), copy=False)
        self._reduce(work, op, finish)
        if work is not buffer:
            buffer[:] = work

    def _reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        """`allreduce` of a buffer that has no half precision."""
        # MPI's logical type has no MIN, MAX, PROD.
        data = work.view(np.uint8) if work.dtype == np.bool_ else work
        for start in range(0, len(data), LARGEST_COUNT):
            part = data[start : start + LARGEST_COUNT]
            request = self.group.begin(self.comm.Iallreduce, self._in_place, part, op=self._ops[op])
            self.group.wait_all([request], "allreduce")
        finish(work)

    def allreduce_rows(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        """The same where the buffers are the rows of a segment that `allocate` has given."""
        self.allreduce(rows[self.group.index], op, finish)

    def together(self) -> AbstractContextManager:
        """Broadcasts that are made within may be one."""
        return nullcontext()

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """Overwrite `buffer` with that of the rank of index `root`."""
        for piece in self._messages(buffer):
            request = self.group.begin(self.comm.Ibcast, piece, root=root)
            self.group.wait_all([request], "broadcast")

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """All ranks' parts, in rank order; rank i's has counts[i] elements."""
        # As broadcasts where the counts get too large for one call.
        gathered = np.empty(sum(counts), dtype=part.dtype)
        if gathered.nbytes < LARGEST_COUNT:
            layout = [gathered.view(np.uint8), [count * part.itemsize for count in counts]]
            request = self.group.begin(self.comm.Iallgatherv, part.view(np.uint8), layout)
            self.group.wait_all([request], "allgather")
            return gathered
        for root, piece in enumerate(stretches(counts)):
            if root == self.group.index:
                gathered[piece] = part
            self.broadcast(gathered[piece], root)
        return gathered

    def alltoall(
        self, data: np.ndarray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> np.ndarray:
        """Send the i-th stretch of `data` to rank i; returns what came, in rank order."""
        received = np.empty(sum(receive_counts), dtype=data.dtype)
        requests = []
        for rank, arriving in enumerate(stretches(receive_counts)):
            requests += self.receive(received[arriving], rank)
        for rank, leaving in enumerate(stretches(send_counts)):
            requests += self.send(data[leaving], rank)
        self.group.wait_all(requests, "alltoall")
        return received

    def reducescatter(
        self, data: np.ndarray, counts: Sequence[int], op: int, finish: Finish
    ) -> np.ndarray:
        """Reduce `data` over all ranks and keep this rank's stretch of counts[index] elements."""
        work = data.copy()
        self.allreduce(work, op, finish)
        return work[stretches(counts)[self.group.index]].copy()

    def stage(self, requests: Sequence[Request], number: int) -> None:
        """Called before round `number` with the calls that this rank offers in it.

        An algorithm may already put the data where the others will find it.
        """

    def run_staged(self, requests: Sequence[Request]) -> None:
        """Finish the calls of a round from what all ranks have staged for it."""

    def allocate(self, row_bytes: int) -> Segment | None:
        """Shared memory with a row for each rank of this host; None, on all ranks, without it."""
        return None

    def send(self, data: np.ndarray, to: int) -> list["MPI.Request"]:
        """Start to send an array to one rank, in as many messages as it takes."""
        return [self.group.begin(self.comm.Isend, piece, dest=to) for piece in self._messages(data)]

    def receive(self, into: np.ndarray, source: int) -> list["MPI.Request"]:
        """Start to receive what `send` sends; the array tells how much that is."""
        return [
            self.group.begin(self.comm.Irecv, piece, source=source)
            for piece in self._messages(into)
        ]

    @staticmethod
    def _messages(array: np.ndarray) -> list[np.ndarray]:
        data = array.view(np.uint8)
        return [data[i : i + LARGEST_COUNT] for i in range(0, len(data), LARGEST_COUNT)]
