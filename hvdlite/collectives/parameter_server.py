"""Allreduce through a parameter server: all send to one rank, which reduces and sends back.

Rank 0 is the server. It takes in every other rank's tensor, one after the other, adds it to its
own, and at the end sends each of them the result.

A worker sends the tensor once and receives it once, as little as can be. The server does both
for every worker: 2 (size-1) times the tensor pass through its one network link, while all the
others wait. With twice the ranks a step takes twice as long, which is what the ring does away
with: there each rank moves 2 (size-1)/size times the tensor each way, however many there are.

Li and others, "Scaling distributed machine learning with the parameter server", 2014, spread the
tensor over several servers; that moves the limit, but as long as servers are few, not far.
"""

import numpy as np

from hvdlite.collectives.mpi import MPICollectives
from hvdlite.reduction import UFUNCS, Finish, accumulator, check_op

SERVER = 0


class ParameterServerCollectives(MPICollectives):
    """Allreduce by way of one rank; the other collectives are MPI's."""

    name = "ps"

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        check_op(op, buffer.dtype, "allreduce")
        if self.group.index == SERVER:
            self._serve(buffer, op, finish)
        else:
            self._send(buffer, SERVER)
            self._receive(buffer, SERVER)

    def _serve(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        workers = [rank for rank in range(self.group.size) if rank != SERVER]
        total = buffer.astype(accumulator(buffer.dtype), copy=False)
        arriving = np.empty_like(buffer)
        for worker in workers:  # in rank order, so that every run adds in the same order
            self._receive(arriving, worker)
            UFUNCS[op](total, arriving.astype(total.dtype, copy=False), out=total)
        finish(total)
        if total is not buffer:
            buffer[:] = total
        for worker in workers:
            self._send(buffer, worker)

    def _send(self, data: np.ndarray, to: int) -> None:
        for request in self.send(data, to):
            self.group.wait_request(request, "parameter server allreduce")

    def _receive(self, into: np.ndarray, source: int) -> None:
        for request in self.receive(into, source):
            self.group.wait_request(request, "parameter server allreduce")
