"""The interface of all algorithms, and how the bytes move where an algorithm has no way of its own.

Most of them are ways to reduce. All else goes by the messages that every group of ranks has.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from hvdlite.collectives.reduction import Finish, accumulator
from hvdlite.memory.shared_memory import Segment
from hvdlite.memory.slices import slices_of
from hvdlite.request import Request
from hvdlite.runtime.groups import Group


class Collectives:
    """How a group's bytes move. A subclass brings `reduce`, or an `allreduce` of its own.

    The engine calls a method on all ranks of the group once they have agreed on it. Arrays are
    flat, contiguous and of one dtype on all ranks: any of numbers for what only moves, and one
    that `reduction.check_op` accepts for what reduces. Counts are in elements, ranks are indices
    in the group. `finish` is what is left to do to a complete sum.

    A method returns when the result is there; on a GPU, when it is in the stream's queue. Each
    waits interruptibly, and raises HorovodInternalError when a rank is lost meanwhile. One thread
    at a time may call them.
    """

    name: str  # in HVDLITE_ALLREDUCE, and in the timeline
    # The ranks' rows where the last `stage` has put the data of all its calls; empty if it has not.
    staged: Sequence[np.ndarray] = ()

    def __init__(self, group: Group):
        self.group = group

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        """Reduce `buffer` in place over all ranks; bit-equal on all of them afterwards."""
        # Halves are added up in float32 and rounded once.
        work = buffer.astype(accumulator(buffer.dtype), copy=False)
        self.reduce(work, op, finish)
        if work is not buffer:
            buffer[:] = work

    def reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        """`allreduce` of a buffer that has no half precision."""
        raise NotImplementedError

    def allreduce_rows(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        """The same where the buffers are the rows of a segment that `allocate` has given."""
        raise NotImplementedError

    def together(self) -> AbstractContextManager:
        """Broadcasts that are made within may be one."""
        return nullcontext()

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """Overwrite `buffer` with that of rank `root`."""
        self.group.broadcast(buffer, root)

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """All ranks' parts, in rank order; rank i's has counts[i] elements."""
        return self.group.allgather(part, counts)

    def alltoall(
        self, data: np.ndarray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> np.ndarray:
        """Send the i-th stretch of `data` to rank i; returns what came, in rank order."""
        received, requests = np.empty(sum(receive_counts), dtype=data.dtype), []
        for rank, arriving in enumerate(slices_of(receive_counts)):
            requests += self.group.receive(received[arriving], rank)
        for rank, leaving in enumerate(slices_of(send_counts)):
            requests += self.group.send(data[leaving], rank)
        self.group.wait_all(requests, "alltoall")
        return received

    def reducescatter(
        self, data: np.ndarray, counts: Sequence[int], op: int, finish: Finish
    ) -> np.ndarray:
        """Reduce `data` over all ranks and keep this rank's stretch of counts[index] elements."""
        work = data.copy()
        self.allreduce(work, op, finish)
        return work[slices_of(counts)[self.group.index]].copy()

    def stage(self, batch: Sequence[Request], number: int) -> None:
        """Called before round `number` with the calls that this rank offers in it.

        The batch is empty where one collective can't run them all.

        An algorithm may already put the data of allreduces where the others will find it.
        """
        self.staged = ()

    def run_staged(self, batch: Sequence[Request]) -> np.ndarray:
        """The result of a round's calls from what all ranks have staged for it.

        It is the output of the only call, or that of all of them, one behind the other.
        """
        raise NotImplementedError

    def allocate(self, row_bytes: int) -> Segment | None:
        """Shared memory with a row for each rank of this host; None, on all ranks, without it."""
        return None
