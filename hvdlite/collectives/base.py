"""The common interface of the algorithms."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hvdlite.reduction import Finish
from hvdlite.request import Request
from hvdlite.shared_memory import Segment


class Collectives(Protocol):
    """Data movement among the ranks of one group.

    The engine calls a method on all ranks once they have agreed on it, with flat contiguous
    arrays of the same dtype. Each waits interruptibly and raises HorovodInternalError when a
    rank is lost meanwhile.
    """

    name: str
    takes_own: (
        bool  # whether `allreduce_rows` takes `own`, stretches of this rank's slice elsewhere
    )
    staged: bool  # whether the last `stage` has put the data of all its calls into place

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        """Reduce `buffer` in place over all ranks; bit-equal on all of them afterwards."""

    def allreduce_rows(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        """The same where the buffers are the rows of a segment that `allocate` has given."""

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """Overwrite `buffer` with that of the rank of index `root`."""

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """All ranks' parts, in rank order; rank i's has counts[i] elements."""

    def alltoall(
        self, data: np.ndarray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> np.ndarray:
        """Send the i-th stretch of `data` to rank i; returns what came, in rank order."""

    def reducescatter(
        self, data: np.ndarray, counts: Sequence[int], op: int, finish: Finish
    ) -> np.ndarray:
        """Reduce `data` over all ranks and keep this rank's stretch of counts[index] elements."""

    def allocate(self, row_bytes: int) -> Segment | None:
        """Shared memory with a row for each rank of this host; None, on all ranks, without it."""

    def stage(self, requests: Sequence[Request], number: int) -> None:
        """Called before round `number` with the calls that this rank offers in it.

        An algorithm may already put the data where the others will find it.
        """

    def run_staged(self, requests: Sequence[Request], number: int) -> None:
        """Finish the calls of a round from what all ranks have staged for it."""
