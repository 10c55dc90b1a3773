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

from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import UFUNCS, Finish

SERVER = 0


class ParameterServerCollectives(Collectives):
    """Allreduce by way of one rank."""

    name = "ps"

    def reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        operation, group = "parameter server allreduce", self.group
        if group.index != SERVER:
            group.wait_all(group.send(work, SERVER), operation)
            group.wait_all(group.receive(work, SERVER), operation)
            return
        workers = [rank for rank in range(group.size) if rank != SERVER]
        arriving = np.empty_like(work)
        for worker in workers:  # in rank order, so that every run adds in the same order
            group.wait_all(group.receive(arriving, worker), operation)
            UFUNCS[op](work, arriving, out=work)
        finish(work)
        for worker in workers:
            group.wait_all(group.send(work, worker), operation)
