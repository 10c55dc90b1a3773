"""How to wait, and the stall inspector: who has not come to a collective?

A wait spins for microseconds, then yields the core, then sleeps longer and longer. In Python code
it can always be interrupted, an idle rank does not burn a core, and the sleep stays a small part
of the time already waited, so it costs a few percent of a long wait at most.
Spin-then-block as in Ousterhout, "Scheduling techniques for concurrent systems", 1982.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdlite.exceptions import HorovodInternalError
from hvdlite.waiting import signals
from hvdlite.waiting.status import ACTIVE, StatusBoard, where_in_users_code

if TYPE_CHECKING:
    from hvdlite.runtime.groups import Group

_SLEEP_AFTER = 0.001  # seconds of yielding before the first sleep
_LONGEST_SLEEP = 0.005
NOTE_AFTER = 0.1  # seconds of waiting before this rank writes down what it is doing
_TITLES_SHOWN = 3


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


def wait_until(
    ready: Callable[[], bool],
    group: "Group",
    call: object,
    missing: Callable[[], list[int]],
    pending: Callable[[], Sequence[str]] = tuple,
    spins: int = 100,
) -> None:
    """Wait for other ranks of the group until `ready()`; can be interrupted at any moment.

    `call` is waited for, to which the ranks in `missing()` have not come, and messages tell of
    the other calls in `pending()` too. Before the core is yielded come so many `spins`, unless
    that would harm others. Writes this rank's note and warns when the wait gets long.
    Raises HorovodInternalError if the collective can't finish any more or has waited longer than
    the shutdown time.
    """
    world, settings = group.world, group.world.settings
    patience = Patience(0 if world.crowded else spins)
    noted, next_look = False, 0.01
    next_warning = settings.stall_warning_time or float("inf")
    try:
        while not ready():
            waited = patience.pause()
            if waited < next_look:
                continue
            next_look = waited + 0.02
            # A wait inside of another one leaves that one's note as it is.
            if waited > NOTE_AFTER and not world.status.read(world.rank).text:
                noted = True
                world.status.write(ACTIVE, f"waits in {call} at {where_in_users_code()}")
            late = missing()
            world.status.check(call, late)
            if 0 < settings.stall_shutdown_time < waited:
                message = _describe(world.status, call, waited, late, pending())
                raise HorovodInternalError(
                    f"{message} It was given up after {settings.stall_shutdown_time:g} s "
                    "(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)."
                )
            if waited > next_warning:
                next_warning += settings.stall_warning_time
                # One rank warns for all that wait: the lowest of them.
                if all(rank in late for rank in group.ranks if rank < world.rank):
                    message = _describe(world.status, call, waited, late, pending())
                    print(f"hvdlite: {message}", file=sys.stderr, flush=True)
    finally:
        if noted:
            world.status.write(ACTIVE, "")


def _describe(
    status: StatusBoard, call: object, waited: float, missing: list[int], pending: Sequence[str]
) -> str:
    """Which call waits for whom, and what those do instead."""
    text, others = str(call), [title for title in pending if title != str(call)]
    if others:
        text += f" (and {len(others)} more: {', '.join(others[:_TITLES_SHOWN])}"
        text += ", ...)" if len(others) > _TITLES_SHOWN else ")"
    text += f" has waited for {waited:.0f} s"
    if not missing:
        return f"{text}."
    doing = []
    for rank in missing:
        note = status.read(rank)
        idle = not note.text and note.state == ACTIVE
        doing.append(f"rank {rank} {'is not in a collective call' if idle else note.text}")
    who = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
    return f"{text} for {who}: {'; '.join(doing)}."
