"""Allreduce over several hosts: in shared memory inside a host, by messages between hosts.

The network is the slow part, so each byte crosses it as rarely as possible, and several ranks of
a host use it at a time:

    reduce-scatter inside each host: its carriers each get one share of the host's sum.
    allreduce between hosts: carrier i of one host with carrier i of every other host.
    allgather inside each host: the complete shares go to all its ranks.

The carriers are the first k ranks of each host, k being the smallest number of ranks on a host.
Where all hosts have the same number, all ranks are carriers; a host with a single rank makes
k = 1, and then only the leader of each host talks to the others.
"""

from collections.abc import Sequence

import numpy as np

from hvdlite.collectives.mpi import MPICollectives
from hvdlite.collectives.ring import RingCollectives
from hvdlite.collectives.shm import SharedMemoryCollectives
from hvdlite.fusion import slices
from hvdlite.groups import Group
from hvdlite.reduction import Finish, accumulator, reduce_into
from hvdlite.shared_memory import Segment

# MPI's own non-blocking allreduce takes fewer steps than a ring, but sends all data there and then
# all of it back.
RING_BYTES = 1 << 16


class HierarchicalCollectives(MPICollectives):
    """Allreduce in two levels; the other collectives are MPI's."""

    name = "hierarchical"

    def __init__(self, group: Group):
        from mpi4py import MPI

        super().__init__(group)
        here = next(i for i, host in enumerate(group.hosts) if group.world.rank in host)
        inside = Group(group.world, group.comm.Split(here), group.hosts[here])
        self.inside = SharedMemoryCollectives.create(inside) or MPICollectives(inside)
        self.carriers = min(len(host) for host in group.hosts)
        self.between = None
        place = inside.index
        comm = group.comm.Split(place if place < self.carriers else MPI.UNDEFINED)
        if place < self.carriers:
            peers = Group(group.world, comm, [host[place] for host in group.hosts])
            self.between = MPICollectives(peers), RingCollectives(peers)

    def _reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        counts = [share.stop - share.start for share in self._shares(len(work))]
        share = self.inside.reducescatter(work, counts, op, _nothing_yet)
        self._reduce_between(share, op, finish)
        work[:] = self.inside.allgather(share, counts)

    def allreduce_rows(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        """Row i is the buffer of rank i of this host."""
        own = rows[self.inside.group.index]
        mine = self._shares(len(own))[self.inside.group.index]
        if self.between is not None:
            share = own[mine].astype(accumulator(own.dtype), copy=False)
            reduce_into(share, [row[mine] for row in rows], op)
            self._reduce_between(share, op, finish)
            for row in rows:
                row[mine] = share
        self.inside.group.sync("allreduce")

    def _reduce_between(self, share: np.ndarray, op: int, finish: Finish) -> None:
        """A ring, which uses the network in both directions at once, unless there is little."""
        if self.between is not None:
            self.between[share.nbytes >= RING_BYTES].allreduce(share, op, finish)

    def allocate(self, row_bytes: int) -> Segment | None:
        segment = self.inside.allocate(row_bytes)
        everywhere = self.group.allgather_numbers([segment is not None]).all()
        return segment if everywhere else None

    def _shares(self, count: int) -> list[slice]:
        """What each rank of this host carries of `count` elements: nothing if it is no carrier."""
        others = self.inside.group.size - self.carriers
        return slices(count, self.carriers) + [slice(count, count)] * others


def _nothing_yet(array: np.ndarray) -> None:
    """The host's sum is not finished: that comes after the sum over hosts."""
