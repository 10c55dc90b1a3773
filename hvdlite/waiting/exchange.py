"""How ranks show each other, round after round, a number that stands for what they ask for.

A round is over for a rank when all ranks have shown their number. A rank is never more than one
round ahead of another, so two slots a rank, used in turn, are enough.

Both kinds are for one thread at a time, the one that holds the lock of the group's channel.
"""

import time
from typing import TYPE_CHECKING

import numpy as np

from hvdlite.memory import shared_memory

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvdlite.runtime.groups import Group

_ROUND, _SIGNALS, _SLOT, _TIME = 0, 1, 2, 4  # 64-bit fields of a row; slots and times are two
ROW_BYTES = 64


class SharedExchange:
    """The ranks of one host: a row of shared memory each, no message at all."""

    def __init__(self, segment: shared_memory.Segment, index: int):
        self._fields = memoryview(segment.memory).cast("q")
        stride = len(self._fields) // len(segment.rows)
        self._mine = index * stride
        self._starts = [i * stride for i in range(len(segment.rows))]
        self._others = [start for i, start in enumerate(self._starts) if i != index]
        self._signals = 0

    def post(self, number: int, value: int) -> None:
        """Show `value` in round `number`; what was written before is visible with it."""
        fields, mine = self._fields, self._mine
        fields[mine + _SLOT + (number & 1)] = value
        fields[mine + _TIME + (number & 1)] = time.monotonic_ns()
        shared_memory.fence()
        fields[mine + _ROUND] = number

    def arrived(self, number: int) -> bool:
        """Whether all ranks have shown their value of the round."""
        return self._reached(_ROUND, number)

    def equal(self, number: int) -> bool:
        """Whether all ranks have shown the same value."""
        fields, slot = self._fields, _SLOT + (number & 1)
        return len({fields[start + slot] for start in self._starts}) == 1

    def missing(self, number: int) -> list[int]:
        """The indices of the ranks that have not yet shown a value in the round."""
        fields = self._fields
        return [i for i, s in enumerate(self._starts) if fields[s + _ROUND] < number]

    def posted_at(self, number: int) -> list[int]:
        """When each rank showed its value (time.monotonic_ns), if the clock is common."""
        return [self._fields[start + _TIME + (number & 1)] for start in self._starts]

    def wanted(self, number: int) -> bool:
        """Whether another rank has already begun the round."""
        return any(self._fields[start + _ROUND] >= number for start in self._others)

    def signal(self) -> int:
        """Tell the others that this rank has come to the next point; returns its number."""
        self._signals += 1
        shared_memory.fence()
        self._fields[self._mine + _SIGNALS] = self._signals
        return self._signals

    def signalled(self, number: int) -> bool:
        """Whether all ranks have come to that point."""
        return self._reached(_SIGNALS, number)

    def _reached(self, field: int, number: int) -> bool:
        fields = self._fields
        for start in self._others:
            if fields[start + field] < number:
                return False
        shared_memory.fence()
        return True


class MessageExchange:
    """Ranks without common memory: one tiny non-blocking allgather a round."""

    REPEAT_AFTER = 0.002  # seconds before a rank whose wish did not change asks again

    def __init__(self, group: "Group"):
        self._group = group
        self._values = np.zeros(group.size, dtype=np.int64)
        self._mine = np.zeros(1, dtype=np.int64)
        self._request: MPI.Request | None = None
        self._arrived_at = 0.0

    def post(self, number: int, value: int) -> None:
        self._group.world.status.receive()
        self._mine[0] = value
        self._request = self._group.begin(self._group.comm.Iallgather, self._mine, self._values)

    def arrived(self, number: int) -> bool:
        if self._request is not None and self._request.Test():
            self._request = None
            self._group.under_way.clear()  # there was nothing else
            self._arrived_at = time.monotonic()
        return self._request is None

    def equal(self, number: int) -> bool:
        return bool((self._values == self._mine).all())

    def missing(self, number: int) -> list[int]:
        # MPI doesn't tell who has come; the notes of the status board do, as far as they can.
        group = self._group
        posted = [group.world.status.progress(r, group.set_id).posted for r in group.ranks]
        return [i for i, last in enumerate(posted) if i != group.index and last < number]

    def posted_at(self, number: int) -> list[int]:
        return []

    def wanted(self, number: int) -> bool:
        return time.monotonic() - self._arrived_at > self.REPEAT_AFTER
