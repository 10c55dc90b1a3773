"""How to wait: spin for microseconds, then yield the core, then sleep longer and longer.

A wait in Python code can always be interrupted, an idle rank does not burn a core, and the sleep
stays a small part of the time already waited, so it costs a few percent of a long wait at most.
"""

import os
import signal
import threading
import time

_SLEEP_AFTER = 0.001  # seconds of yielding before the first sleep
_LONGEST_SLEEP = 0.005


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


_signals: list[int] = []  # the reading end of a pipe, see `watch`


def watch(pipe: int) -> None:
    """Let waits in other threads than the main one end with the SIGINT that comes by this pipe.

    `signal.set_wakeup_fd` writes there. Python's handlers run in the main thread only, which may
    itself be waiting for such a thread, in code that is not Python's.
    """
    _signals[:] = [pipe]


def is_watched() -> bool:
    """Whether `watch` was called."""
    return bool(_signals)


def arrived() -> bytes:
    """The signals that have come by that pipe since the last call."""
    if not _signals:
        return b""
    try:
        return os.read(_signals[0], 4096)
    except BlockingIOError:
        return b""


class Patience:
    """One wait. Call `pause()` between two looks at the thing that is waited for."""

    __slots__ = ("started", "_spins")

    def __init__(self, spins: int = 0):
        self.started = time.monotonic()
        self._spins = spins

    def pause(self) -> float:
        """Wait a moment that fits the time waited so far; returns that time in seconds."""
        if self._spins > 0:
            self._spins -= 1
            return 0.0
        waited = time.monotonic() - self.started
        if waited < _SLEEP_AFTER:
            os.sched_yield()
        else:
            aside = threading.current_thread() is not threading.main_thread()
            if aside and signal.SIGINT in arrived():
                raise KeyboardInterrupt
            time.sleep(min(waited / 32, _LONGEST_SLEEP))
        return waited
