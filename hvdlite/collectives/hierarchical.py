"""Allreduce over several hosts: in shared memory inside a host, by messages between hosts.

The network is the slow part, so each byte crosses it as rarely as possible, and several ranks of
a host use it at a time:

    reduce-scatter inside each host: its carriers each reduce one share of its ranks' buffers.
    allreduce between hosts: carrier i of one host with carrier i of every other host.
    allgather inside each host: the carriers write the complete shares to all its ranks.

Horovod's HOROVOD_HIERARCHICAL_ALLREDUCE (2018) does the same with NCCL inside a host, where all
ranks are carriers.

The carriers are the first k ranks of each host, k being the smallest number of ranks on a host.
Where all hosts have the same number, all ranks are carriers; a host with a single rank makes
k = 1, and then only the leader of each host talks to the others.

A tensor that is not in shared memory goes through a stage there, a large one in pieces.
"""

from collections.abc import Sequence

import numpy as np

from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.mpi import MPICollectives
from hvdlite.collectives.reduction import Finish, accumulator, reduce_into
from hvdlite.collectives.ring import RingCollectives
from hvdlite.memory.shared_memory import Segment
from hvdlite.memory.slices import even_slices
from hvdlite.runtime.groups import Group

# MPI's own non-blocking allreduce takes fewer steps than a ring, but sends all data there and then
# all of it back.
RING_BYTES = 1 << 16
STAGE_BYTES = 1 << 21  # small enough that one rank copies while another one sends


class HierarchicalCollectives(Collectives):
    """Allreduce in two levels."""

    name = "hierarchical"

    def __init__(self, group: Group):
        from mpi4py import MPI

        super().__init__(group)
        here = next(i for i, host in enumerate(group.hosts) if group.world.rank in host)
        self.inside = group.part(group.comm.Split(here), group.hosts[here])
        self.carriers = min(len(host) for host in group.hosts)
        place = self.inside.index
        self.is_carrier = place < self.carriers
        comm = group.comm.Split(place if self.is_carrier else MPI.UNDEFINED)
        if self.is_carrier:
            peers = group.part(comm, [host[place] for host in group.hosts])
            self._mpi_between, self._ring_between = MPICollectives(peers), RingCollectives(peers)
        self._stage = self.allocate(STAGE_BYTES)

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        if self._stage is None:
            MPICollectives(self.group).allreduce(buffer, op, finish)
            return
        most = STAGE_BYTES // buffer.itemsize
        for start in range(0, len(buffer), most):
            piece = buffer[start : start + most]
            rows = [row[: piece.nbytes].view(piece.dtype) for row in self._stage.rows]
            rows[self.inside.index][:] = piece
            self.inside.sync("allreduce")
            self.allreduce_rows(rows, op, finish)
            piece[:] = rows[self.inside.index]

    def allreduce_rows(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        """Row i is the buffer of rank i of this host."""
        if self.is_carrier:
            own = rows[self.inside.index]
            mine = even_slices(len(own), self.carriers)[self.inside.index]
            share = own[mine].astype(accumulator(own.dtype), copy=False)
            reduce_into(share, [row[mine] for row in rows], op)
            # A ring, which uses the network in both directions at once, unless there is little.
            large = share.nbytes >= RING_BYTES
            between = self._ring_between if large else self._mpi_between
            between.reduce(share, op, finish)
            for row in rows:
                row[mine] = share
        self.inside.sync("allreduce")

    def allocate(self, row_bytes: int) -> Segment | None:
        segment = self.inside.allocate(row_bytes)
        everywhere = self.group.allgather_numbers([segment is not None]).all()
        return segment if everywhere else None
