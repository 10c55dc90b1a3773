"""A group of ranks that make collectives together: the world, or a process set."""

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdlite import exchange, shared_memory
from hvdlite.stall import wait_until
from hvdlite.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

_TESTS = 1000


class Group:
    """One communicator, with what its ranks share. All its ranks must make it together.

    `ranks` are their numbers in the world, `index` is this rank's place among them. With
    `shared` the ranks are all on this host and have memory in common.
    """

    def __init__(self, world: World, comm: "MPI.Intracomm", ranks: list[int]):
        self.world = world
        self.comm = comm
        self.ranks = ranks
        self.index = comm.rank
        self.size = comm.size
        self.lent: list[tuple] = []  # what MPI calls under way read and write
        hosts = [[rank for rank in ranks if rank in host] for host in world.hosts]
        self.hosts = [host for host in hosts if host]  # the ranks of each host
        segment = self.allocate(exchange.ROW_BYTES) if len(self.hosts) == 1 else None
        self.shared = segment is not None
        if self.shared:
            self.exchange = exchange.SharedExchange(segment, self.index)
        else:
            self.exchange = exchange.MessageExchange(comm.Dup())

    def allocate(self, row_bytes: int) -> shared_memory.Segment | None:
        """Shared memory with a row for each rank, or None; all ranks must call it."""
        limit = self.world.settings.shared_memory_limit
        return shared_memory.allocate(self.comm, row_bytes, limit, self.allgather_object)

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, inside a collective that all ranks have begun; can be interrupted.

        Raises HorovodInternalError when a rank has left or given up meanwhile.
        """
        me = self.world.rank
        wait_until(ready, self, what, lambda: [rank for rank in self.ranks if rank != me])

    def sync(self, what: str = "a collective") -> None:
        """Wait until all ranks of a shared group are here."""
        number = self.exchange.signal()
        if not self.exchange.signalled(number):
            self.wait_until(lambda: self.exchange.signalled(number), what)

    def begin(self, call: Callable[..., "MPI.Request"], *buffers: Any, **more: Any):
        """Start an MPI call. Its buffers outlive an interrupt, as MPI may still write to them."""
        self.lent.append(buffers)
        return call(*buffers, **more)

    def wait_all(self, requests: "Sequence[MPI.Request]", what: str = "a collective") -> None:
        """Wait, interruptibly, for all MPI calls that have begun."""
        for request in requests:
            if not request.Test():
                # A test moves one fragment over TCP, and a long wait sleeps between two looks.
                self.wait_until(lambda r=request: any(r.Test() for _ in range(_TESTS)), what)
        self.lent.clear()

    def allgather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Every rank's numbers (int64, the same count on each): an array of [size, count]."""
        gathered = np.empty((self.size, len(numbers)), dtype=np.int64)
        mine = np.asarray(numbers, dtype=np.int64)
        self.wait_all([self.begin(self.comm.Iallgather, mine, gathered)])
        return gathered

    def allgather_object(self, item: Any) -> list[Any]:
        """Every rank's object, in rank order; for the runtime's own messages."""
        data = np.frombuffer(pickle.dumps(item), dtype=np.uint8)
        counts = self.allgather_numbers(np.array([len(data)]))[:, 0]
        gathered = np.empty(int(counts.sum()), dtype=np.uint8)
        self.wait_all([self.begin(self.comm.Iallgatherv, data, [gathered, counts])])
        return [pickle.loads(part) for part in np.split(gathered, np.cumsum(counts)[:-1])]
