"""How to wait: spin for microseconds, then yield the core, then sleep longer and longer.

A wait in Python code can always be interrupted, an idle rank does not burn a core, and the sleep
stays a small part of the time already waited, so it costs a few percent of a long wait at most.
Spin-then-block as in Ousterhout, "Scheduling techniques for concurrent systems", 1982.
"""

import os
import time

from hvdlite.waiting import signals

_SLEEP_AFTER = 0.001  # seconds of yielding before the first sleep
_LONGEST_SLEEP = 0.005


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Patience:
    """One wait. Call `pause()` between two looks at the thing that is waited for."""

    __slots__ = ("started", "_spins")

    def __init__(self, spins: int = 0):
        self.started = time.monotonic()
        self._spins = spins

    def pause(self) -> float:
        """Wait a moment that fits the time waited so far; returns that time in seconds.

        In another thread than the main one it raises KeyboardInterrupt for `signals.watch`.
        """
        if self._spins > 0:
            self._spins -= 1
            return 0.0
        waited = time.monotonic() - self.started
        if waited < _SLEEP_AFTER:
            os.sched_yield()
        else:
            if signals.is_interrupted() and not signals.in_main_thread():
                raise KeyboardInterrupt
            time.sleep(min(waited / 32, _LONGEST_SLEEP))
        return waited
