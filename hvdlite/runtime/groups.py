"""A group of ranks that make collectives together: the world, or a process set."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdlite.memory import shared_memory
from hvdlite.memory.slices import slices_of
from hvdlite.runtime.world import World
from hvdlite.waiting import exchange
from hvdlite.waiting.wait import wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

_TESTS = 1000
# MPI counts are C ints, and some libraries are slow or wrong near their limit.
LARGEST_COUNT = 1 << 30


@dataclass(slots=True)
class UnderWay:
    """A call of MPI and what it reads and writes, which must outlive an interrupt.

    Made before the call: an interrupt that comes while MPI begins is raised right after it, when
    nobody has the request yet. Without one it counts as never finished.
    """

    buffers: tuple
    request: "MPI.Request | None" = None


class Group:
    """One communicator, with what its ranks share. All its ranks must make it together.

    `ranks` are their numbers in the world, `index` is this rank's place among them. With
    `shared` the ranks are all on this host and have memory in common. The communicator becomes
    the group's own. One thread at a time may use it.
    """

    def __init__(self, world: World, comm: "MPI.Intracomm", ranks: list[int], set_id: int = 0):
        self.world = world
        self.comm = comm
        self.ranks = ranks
        self.set_id = set_id
        self.index = comm.rank
        self.size = comm.size
        self.under_way: list[UnderWay] = []
        self._parts: list[Group] = []
        hosts = [[rank for rank in ranks if rank in host] for host in world.hosts]
        self.hosts = [host for host in hosts if host]  # the ranks of each host
        segment = self.allocate(exchange.ROW_BYTES) if len(self.hosts) == 1 else None
        self.shared = segment is not None
        if self.shared:
            self.exchange = exchange.SharedExchange(segment, self.index)
        else:
            self.exchange = exchange.MessageExchange(self)

    def part(self, comm: "MPI.Intracomm", ranks: list[int]) -> "Group":
        """A group of some of these ranks, on which collectives of the whole are built."""
        self._parts.append(Group(self.world, comm, ranks, self.set_id))
        return self._parts[-1]

    def with_parts(self) -> "list[Group]":
        """The group and all of `part`."""
        return [self, *self._parts]

    def allocate(self, row_bytes: int) -> shared_memory.Segment | None:
        """Shared memory with a row for each rank, or None; all ranks must call it."""
        limit = self.world.settings.shared_memory_limit
        return shared_memory.allocate(self.comm, row_bytes, limit, self.allgather_object)

    def _behind(self) -> list[int]:
        """The ranks that have not, as far as one knows, come through what this one is amid."""
        status, world_rank = self.world.status, self.world.rank
        finished = status.progress(world_rank, self.set_id).finished
        return [
            rank
            for rank in self.ranks
            if rank != world_rank and status.progress(rank, self.set_id).finished <= finished
        ]

    def sync(self, operation: str = "a collective") -> None:
        """Wait, interruptibly, until all ranks of a shared group are here.

        This and `wait_all` are for collectives that all ranks have begun. They raise
        HorovodInternalError when a rank has given up, or has left without its part in it.
        """
        number = self.exchange.signal()
        if not self.exchange.signalled(number):
            wait_until(lambda: self.exchange.signalled(number), self, operation, self._behind)

    def begin(self, call: Callable[..., "MPI.Request"], *buffers: Any, **more: Any):
        """Start an MPI call. Its buffers outlive an interrupt, as MPI may still write to them."""
        under_way = UnderWay(buffers)
        self.under_way.append(under_way)
        under_way.request = call(*buffers, **more)
        return under_way.request

    def wait_all(self, requests: "Sequence[MPI.Request]", operation: str = "a collective") -> None:
        """Wait, interruptibly, for all MPI calls that have begun."""
        for request in requests:
            if not request.Test():
                done = partial(_is_over, request)
                wait_until(done, self, operation, self._behind)
        self.under_way.clear()

    def allgather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Every rank's numbers (int64, the same count on each): an array of [size, count]."""
        gathered = np.empty((self.size, len(numbers)), dtype=np.int64)
        mine = np.asarray(numbers, dtype=np.int64)
        self.wait_all([self.begin(self.comm.Iallgather, mine, gathered)])
        return gathered

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """All ranks' parts (flat), in rank order; rank i's has counts[i] elements."""
        gathered = np.empty(sum(counts), dtype=part.dtype)
        if gathered.nbytes < LARGEST_COUNT:
            layout = [gathered.view(np.uint8), [count * part.itemsize for count in counts]]
            call = self.begin(self.comm.Iallgatherv, part.view(np.uint8), layout)
            self.wait_all([call], "allgather")
            return gathered
        for root, piece in enumerate(slices_of(counts)):  # too much for one call
            if root == self.index:
                gathered[piece] = part
            self.broadcast(gathered[piece], root)
        return gathered

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """Overwrite a flat array with that of the rank of index `root`."""
        for piece in in_pieces(buffer):
            self.wait_all([self.begin(self.comm.Ibcast, piece, root=root)], "broadcast")

    def send(self, data: np.ndarray, to: int) -> "list[MPI.Request]":
        """Start to send a flat array to one rank, in as many messages as it takes."""
        return [self.begin(self.comm.Isend, piece, dest=to) for piece in in_pieces(data)]

    def receive(self, into: np.ndarray, source: int) -> "list[MPI.Request]":
        """Start to receive what `send` sends; the array tells how much that is."""
        return [self.begin(self.comm.Irecv, piece, source=source) for piece in in_pieces(into)]

    def allgather_object(self, item: Any) -> list[Any]:
        """Every rank's object, in rank order; for the runtime's own messages."""
        data = np.frombuffer(pickle.dumps(item), dtype=np.uint8)
        counts = self.allgather_numbers([len(data)])[:, 0].tolist()
        gathered = self.allgather(data, counts)
        return [pickle.loads(gathered[piece]) for piece in slices_of(counts)]

    def close(self) -> None:
        """Give back the communicators once all ranks have met again; not a collective."""
        for group in self.with_parts():
            give_back(group.comm, group.under_way)


def _is_over(request: "MPI.Request") -> bool:
    # A test moves one fragment over TCP, and a long wait sleeps between two looks.
    return any(request.Test() for _ in range(_TESTS))


def in_pieces(array: np.ndarray) -> list[np.ndarray]:
    """A flat array as bytes, in pieces that MPI can send."""
    data = array.view(np.uint8)
    return [data[i : i + LARGEST_COUNT] for i in range(0, len(data), LARGEST_COUNT)]


_given_back: list[tuple[Any, list[UnderWay]]] = []


def give_back(comm: Any, calls: list[UnderWay]) -> None:
    """This rank will not use a communicator any more; MPI may not have finished `calls` on it.

    One of MPI's, or NCCL's (`NCCLCollectives`), which its `Free()` ends.
    """
    _given_back.append((comm, calls))


def tidy_up() -> None:
    """Free the communicators that were given back, as far as MPI has finished with them.

    To be called when all ranks have met after that, so that no message to them is on its way.
    """
    waiting = _given_back[:]
    _given_back.clear()
    for comm, calls in waiting:
        if all(call.request is not None and call.request.Test() for call in calls):
            comm.Free()
        else:
            _given_back.append((comm, calls))
