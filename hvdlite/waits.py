"""Which threads of this process make collective calls, and which of them wait where."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hvdlite.agreement import QUIET
from hvdlite.request import Descriptor
from hvdlite.status import where_in_users_code


class _Wait(NamedTuple):
    descriptor: Descriptor
    set_id: int
    since: float


class Waits:
    """The evidence for a deadlock: whether any thread may still make another call."""

    def __init__(self) -> None:
        # False where calls are made in no order that a program could give them.
        self.in_order = True
        self._callers: set[int] = set()
        self._waiting: dict[int, _Wait] = {}

    def calls(self) -> None:
        """This thread makes a call."""
        self._callers.add(threading.get_ident())

    @contextmanager
    def in_call(self, descriptor: Descriptor, set_id: int) -> Iterator[None]:
        """Within, this thread waits for a call."""
        thread = threading.get_ident()
        self._waiting[thread] = _Wait(descriptor, set_id, time.monotonic())
        try:
            yield
        finally:
            del self._waiting[thread]

    def of_group(self, set_id: int) -> tuple[Sequence[str], Sequence[str]]:
        """The keys of the group's calls that threads wait for, and `_last_waits`."""
        waiting = dict(self._waiting)
        keys = [wait.descriptor.key for wait in waiting.values() if wait.set_id == set_id]
        return keys, self._last_waits(waiting, set_id)

    def _last_waits(self, waiting: dict[int, _Wait], set_id: int) -> Sequence[str]:
        """Where threads of this process wait, if no call of the group is to be expected any more.

        That is, if all threads that have made calls have waited in this group for QUIET seconds.
        Empty if not.
        """
        long_ago = time.monotonic() - QUIET
        if not self.in_order or any(
            wait.set_id != set_id or wait.since > long_ago for wait in waiting.values()
        ):
            return ()
        frames = sys._current_frames()
        others = (self._callers & frames.keys()) - waiting.keys()
        if waiting.keys() - _threads_of_python():
            # A framework's thread waits, and the main thread for the framework.
            others.discard(threading.main_thread().ident)
        if others:
            return ()
        return [
            f"{wait.descriptor} at {where_in_users_code(frames[thread])}"
            for thread, wait in waiting.items()
        ]


def _threads_of_python() -> set[int | None]:
    """The threads that Python has started, and the main thread."""
    return {
        thread.ident
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
    }
