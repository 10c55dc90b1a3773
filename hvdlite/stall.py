"""The stall inspector: tells about a collective that some ranks have not come to."""

import sys
from collections.abc import Callable, Sequence

from hvdlite.exceptions import HorovodInternalError
from hvdlite.status import ACTIVE, StatusBoard, where_in_users_code
from hvdlite.world import World

NOTE_AFTER = 0.1  # seconds of waiting before this rank writes down what it is doing
_TITLES_SHOWN = 3


class StallInspector:
    """Follows one wait of this rank: writes its note, warns, and in the end gives it up."""

    def __init__(self, world: World, title: str, missing: Callable[[], list[int]]):
        self._world = world
        self._status: StatusBoard = world.status
        self._title = title
        self._missing = missing
        self._noted = False
        self._next_check = 0.01
        self._next_warning = world.settings.stall_warning_time or float("inf")

    def look(self, waited: float, pending: Sequence[str] = ()) -> None:
        """Called now and then during the wait, `waited` seconds after its start.

        Raises HorovodInternalError if the collective can't finish any more or has waited longer
        than the shutdown time.
        """
        if waited < self._next_check:
            return
        self._next_check = waited + 0.02
        if waited > NOTE_AFTER and not self._noted:
            self._noted = True
            self._status.write(ACTIVE, f"waits in {self._title} at {where_in_users_code()}")
        missing = self._missing()
        self._status.check(self._title, missing)
        shutdown_time = self._world.settings.stall_shutdown_time
        if 0 < shutdown_time < waited:
            raise HorovodInternalError(
                f"{self.describe(waited, missing, pending)} It was given up after "
                f"{shutdown_time:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)."
            )
        if waited > self._next_warning:
            self._next_warning += self._world.settings.stall_warning_time
            if self._speaks(missing):
                message = self.describe(waited, missing, pending)
                print(f"hvdlite: {message}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The wait is over."""
        if self._noted:
            self._status.write(ACTIVE, "")

    def _speaks(self, missing: list[int]) -> bool:
        """One rank warns for all that wait: the lowest of them."""
        waiting = [rank for rank in range(self._world.size) if rank not in missing]
        return not waiting or self._world.rank <= min(waiting)

    def describe(self, waited: float, missing: list[int], pending: Sequence[str]) -> str:
        """Which call waits for whom, and what those do instead."""
        others = [title for title in pending if title != self._title]
        more = ""
        if others:
            more = f" (and {len(others)} more: {', '.join(others[:_TITLES_SHOWN])}"
            more += ", ...)" if len(others) > _TITLES_SHOWN else ")"
        if not missing:
            return f"{self._title}{more} has waited for {waited:.0f} s."
        doing = []
        for rank in missing:
            note = self._status.read(rank)
            if not note.text and note.state == ACTIVE:
                doing.append(f"rank {rank} is not in a collective call")
            else:
                doing.append(f"rank {rank} {note.text}")
        return (
            f"{self._title}{more} has waited for {waited:.0f} s for "
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}: "
            f"{'; '.join(doing)}."
        )
