"""Which threads of this process make collective calls, and which of them wait where."""

import sys
import threading
import time
from collections.abc import Sequence, Set
from types import FrameType

from hvdlite.engine.agreement import QUIET
from hvdlite.request import Descriptor
from hvdlite.waiting.status import where_in_users_code


class Waits:
    """The evidence for a deadlock: whether any thread may still make another call."""

    def __init__(self) -> None:
        # False where calls are made in no order that a program could give them.
        self.in_order = True
        # The threads that make calls: the main thread may always make its first one.
        self.callers: set[int] = {threading.main_thread().ident}
        # By thread: the call, its process set, and since when. Plain tuples, made at each call.
        self._waiting: dict[int, tuple[Descriptor, int, float]] = {}

    def begin(self, descriptor: Descriptor, set_id: int) -> None:
        """This thread waits for a call, until `end`."""
        self.callers.add(threading.get_ident())
        self._waiting[threading.get_ident()] = descriptor, set_id, time.monotonic()

    def end(self) -> None:
        """This thread does not wait any more."""
        self._waiting.pop(threading.get_ident(), None)

    def of_group(self, set_id: int) -> tuple[Sequence[str], Sequence[str]]:
        """The keys of the group's calls that threads wait for, and `_last_waits`.

        Both are empty while a thread that makes calls does not wait.
        """
        waiting, threads = dict(self._waiting), _threads_of_python()
        # Python 3.11 may crash in `_current_frames` while threads come and go, so that is asked
        # last: not where a thread of Python's own may call, as is nearly always where there are
        # several.
        if not self.in_order or self._may_call(waiting, threads, threads):
            return (), ()
        frames = sys._current_frames()
        if self._may_call(waiting, frames.keys(), threads):
            return (), ()
        keys = [call.key for call, waits_in, _ in waiting.values() if waits_in == set_id]
        return keys, self._last_waits(waiting, frames, set_id)

    def _may_call(
        self, waiting: dict[int, tuple], alive: Set[int | None], threads: Set[int | None]
    ) -> bool:
        """Whether a thread that makes calls does not wait in one; `threads` are Python's own."""
        others = (self.callers & alive) - waiting.keys()
        if waiting.keys() - threads:
            # A framework's thread waits, and the main thread for the framework.
            others.discard(threading.main_thread().ident)
        return bool(others)

    def _last_waits(
        self, waiting: dict[int, tuple], frames: dict[int, FrameType], set_id: int
    ) -> Sequence[str]:
        """Where threads of this process wait, if no call of the group is to be expected any more.

        That is, if they all have waited in this group for QUIET seconds. Empty if not.
        """
        long_ago = time.monotonic() - QUIET
        if any(waits_in != set_id or since > long_ago for _, waits_in, since in waiting.values()):
            return ()
        return [
            f"{call} at {where_in_users_code(frames[thread])}"
            for thread, (call, _, _) in waiting.items()
            if thread in frames
        ]


def _threads_of_python() -> set[int | None]:
    """The threads that Python has started, and the main thread."""
    return {
        thread.ident
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
    }
