"""The MPI library's own collectives, non-blocking, so that a wait can be interrupted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvdlite.collectives.interface import ByMessages, Collectives
from hvdlite.collectives.reduction import Finish
from hvdlite.memory.slices import slices_of
from hvdlite.request import AVERAGE, MAX, MIN, PRODUCT, SUM
from hvdlite.runtime import groups
from hvdlite.runtime.groups import Group, in_pieces

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 0


class MPICollectives(ByMessages):
    """Works on every network and for every group."""

    name = "mpi"

    def __init__(self, group: Group):
        from mpi4py import MPI

        super().__init__(group)
        self._ops = {SUM: MPI.SUM, AVERAGE: MPI.SUM, MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}
        self._in_place = MPI.IN_PLACE

    @property
    def messages(self) -> "MPICollectives":
        return self

    def reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        # MPI's logical type has no MIN, MAX, PROD.
        data = work.view(np.uint8) if work.dtype == np.bool_ else work
        call = self.group.comm.Iallreduce
        most = groups.LARGEST_COUNT
        for start in range(0, len(data), most):
            part = data[start : start + most]
            request = self.group.begin(call, self._in_place, part, op=self._ops[op])
            self.group.wait_all([request], "allreduce")
        finish(work)

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        self.group.broadcast(buffer, root)

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        return self.group.allgather(part, counts)

    def alltoall(
        self, data: np.ndarray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> np.ndarray:
        received = np.empty(sum(receive_counts), dtype=data.dtype)
        requests = []
        for rank, arriving in enumerate(slices_of(receive_counts)):
            requests += self.receive(received[arriving], rank)
        for rank, leaving in enumerate(slices_of(send_counts)):
            requests += self.send(data[leaving], rank)
        self.group.wait_all(requests, "alltoall")
        return received

    def send(self, data: np.ndarray, to: int) -> list["MPI.Request"]:
        """Start to send an array to one rank, in as many messages as it takes."""
        call = self.group.comm.Isend
        return [self.group.begin(call, piece, dest=to, tag=_TAG) for piece in in_pieces(data)]

    def receive(self, into: np.ndarray, source: int) -> list["MPI.Request"]:
        """Start to receive what `send` sends; the array tells how much that is."""
        call = self.group.comm.Irecv
        return [self.group.begin(call, piece, source=source, tag=_TAG) for piece in in_pieces(into)]


class OverMPI(Collectives):
    """An algorithm for allreduce; what it doesn't have, MPI does."""

    def __init__(self, group: Group):
        super().__init__(group)
        self._mpi = MPICollectives(group)

    @property
    def messages(self) -> MPICollectives:
        return self._mpi

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        self._mpi.broadcast(buffer, root)

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        return self._mpi.allgather(part, counts)

    def alltoall(
        self, data: np.ndarray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> np.ndarray:
        return self._mpi.alltoall(data, send_counts, receive_counts)
