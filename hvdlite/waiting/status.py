"""What each rank is doing, as far as the others need to know it.

A rank that waits for long writes down in which call, where in the user's program and since when.
A rank that leaves (its program ended or failed) or gives up a wait (interrupt) says so and why.
On one host this is a page of shared memory; ranks of other hosts are told by small messages.
Nothing here is on the path of a collective that goes well.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hvdlite.exceptions import HorovodInternalError
from hvdlite.memory import shared_memory

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvdlite.runtime.world import World

ACTIVE, LEFT, GONE = range(3)  # LEFT: by shutdown(); GONE: the process ends
_VERSION, _LENGTH = range(2)  # 64-bit fields at the head of a row, before the pickled note
_HEAD = 64
ROW_BYTES = 1 << 14
_LONGEST_TEXT = 1600  # characters, of four bytes each at most
_TAG = 1
_LOOK_AT_MESSAGES_EVERY = 0.02
_GRACE = 1.0  # seconds after a rank has left in which its last collective may still come to an end


class Progress(NamedTuple):
    """How far a rank has come in one group: the last round of agreement that it has begun, and
    the last one whose calls it has run; -1 before the group is set up.
    """

    posted: int = -1
    finished: int = -1


class Note(NamedTuple):
    """One rank's last word: its state, a text, and the time of writing (time.monotonic).

    `broken` says that the rank has given up a wait; the text then tells which and why. `blamed` is
    the rank that made it do so by leaving or giving up itself. `progress` tells, for each group
    by its set_id, how far the rank had come when it wrote.
    """

    state: int = ACTIVE
    text: str = ""
    since: float = 0.0
    broken: bool = False
    blamed: int | None = None
    progress: Mapping[int, tuple[int, int]] = {}


class StatusBoard:
    """Reads and writes the notes of all ranks of a world. Safe to call from several threads.

    The row of shared memory is a seqlock (Lameter, "Effective synchronization on Linux/NUMA
    systems", 2005): its version is odd while the one writer writes, and readers try again.
    """

    def __init__(
        self,
        world: "World",
        segment: shared_memory.Segment | None,
        comm: "MPI.Intracomm | None",
        name: int,
    ):
        self._world = world
        self._comm = comm
        # This rank's progress, which the engine knows. Read at every note only.
        self.own_progress: Callable[[], Mapping[int, tuple[int, int]]] = dict
        self._notes = {rank: Note() for rank in range(world.size)}
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of this host: head and note
        if segment is not None:
            for row, rank in zip(segment.rows, world.host_ranks, strict=True):
                self._rows[rank] = row[:_HEAD].view(np.int64), row[_HEAD:]
        self._elsewhere = [r for r in range(world.size) if r != world.rank and r not in self._rows]
        self._sent: list = []
        self.blamed: int | None = None  # the rank because of which this one's wait had no result
        self._next_look = 0.0
        self._name = name  # of the world; of an earlier one a note may still be on its way
        self._lock = threading.Lock()  # one writer at a time

    def break_off(self, reason: str) -> None:
        """Tell all ranks that this one has given up a wait. The reason stays its last word."""
        self.write(self._notes[self._world.rank].state, reason, broken=True)

    def write(self, state: int, text: str, broken: bool = False) -> None:
        """Tell all ranks this rank's state and what it is doing; one that has left stays so."""
        me = self._world.rank
        with self._lock:
            if state < self._notes[me].state:  # a thread whose wait has ended since
                return
            if self._notes[me].broken:
                text, broken = self._notes[me].text, True
            shown, now, progress = text[:_LONGEST_TEXT], time.monotonic(), self.own_progress()
            note = Note(state, shown, now, broken, self.blamed, progress)
            self._notes[me] = note
            if me in self._rows:
                head, row = self._rows[me]
                data = np.frombuffer(pickle.dumps(note), np.uint8)
                if len(data) > len(row):  # hundreds of process sets
                    data = np.frombuffer(pickle.dumps(note._replace(progress={})), np.uint8)
                head[_VERSION] |= 1  # odd: being written, also where an interrupt ended it before
                shared_memory.fence()
                row[: len(data)] = data
                head[_LENGTH] = len(data)
                shared_memory.fence()
                head[_VERSION] += 1
            self._sent = [request for request in self._sent if not request.Test()]
            for rank in self._elsewhere:
                message = self._name, me, note
                self._sent.append(self._comm.isend(message, dest=rank, tag=_TAG))

    def read(self, rank: int) -> Note:
        """The last note of a rank."""
        if rank not in self._rows:
            self.receive()
            return self._notes[rank]
        head, row = self._rows[rank]
        for _ in range(1000):  # the writer may have been stopped in the middle
            version = int(head[_VERSION])
            shared_memory.fence()
            data = bytes(row[: int(head[_LENGTH])])
            shared_memory.fence()
            if version % 2 == 0 and version == int(head[_VERSION]):
                return pickle.loads(data) if data else Note()
            os.sched_yield()
        return self._notes[rank]

    def receive(self) -> None:
        """Take in what ranks of other hosts have sent, so that it does not pile up."""
        now = time.monotonic()
        if not self._elsewhere or now < self._next_look:
            return
        self._next_look = now + _LOOK_AT_MESSAGES_EVERY
        while (message := self._comm.improbe(tag=_TAG)) is not None:
            name, rank, note = message.recv()
            if name == self._name:
                since = time.monotonic()  # by the clock of this host
                self._notes[rank] = note._replace(since=since)

    def progress(self, rank: int, set_id: int) -> Progress:
        """How far a rank had come in a group, by its last note; this rank, how far it is."""
        own = rank == self._world.rank
        progress = self.own_progress() if own else self.read(rank).progress
        return Progress(*progress.get(set_id, ()))

    def free(self) -> None:
        """Give back the communicator, once all ranks have met in another world."""
        if all(request.Test() for request in self._sent):
            self._comm.Free()

    def gone(self) -> list[int]:
        """The other ranks that have come to the end of their program, the first of them first."""
        others = {rank: self.read(rank) for rank in self._notes if rank != self._world.rank}
        gone = [rank for rank, note in others.items() if note.state == GONE]
        return sorted(gone, key=lambda rank: others[rank].since)

    def broken_by(self) -> tuple[int, Note] | None:
        """The rank that gave up a wait, and its note, if there is one."""
        notes = ((rank, self.read(rank)) for rank in self._notes)
        return next(((rank, note) for rank, note in notes if note.broken), None)

    def blame(self, rank: int) -> None:
        """Remember because of which rank this one goes on without its result."""
        cause = self.read(rank).blamed
        self.blamed = rank if cause is None else cause

    def check(self, waiting_for: object, missing: list[int]) -> None:
        """Raise HorovodInternalError if what this rank waits for can't come any more."""
        if broken := self.broken_by():
            self.blame(broken[0])
            raise HorovodInternalError(broken_message(f"rank {broken[0]}", broken[1].text))
        long_ago = time.monotonic() - _GRACE
        left = [
            (rank, note)
            for rank in missing
            if (note := self.read(rank)).state >= LEFT and note.since < long_ago
        ]
        if left:
            self.blame(min(left, key=lambda item: item[1].since)[0])
            who = "; ".join(f"rank {rank} {note.text}" for rank, note in left)
            raise HorovodInternalError(
                f"{waiting_for} can't finish: {who}. Every rank must make the same collective "
                "calls; check what makes that rank stop early (a condition on the rank, early "
                "stopping on metrics that are not averaged, an error)."
            )


def broken_message(who: str, reason: str) -> str:
    """The text of the error that every rank raises once a rank has given up."""
    return (
        f"{who} {reason}, so the ranks are no longer in step. "
        "Call hvd.shutdown() and hvd.init() on every rank, or start the program again."
    )


def where_in_users_code(frame: FrameType | None = None) -> str:
    """File and line of the innermost frame that is neither hvdlite's nor a library's wrapper.

    `frame` is where a thread is; the caller's without it.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    places = [
        (each.f_code.co_filename, line)
        for each, line in traceback.walk_stack(frame or sys._getframe())
    ]
    places = [place for place in places if not place[0].startswith((package, "<frozen"))]
    own = [place for place in places if "site-packages" not in place[0]]
    return "{}:{}".format(*(own or places)[0]) if places else "unknown place"
