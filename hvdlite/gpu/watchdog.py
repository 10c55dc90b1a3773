"""A thread that ends calls on the GPU whose other ranks have gone, or have given up.

A rank waits for its GPU in foreign code, which neither Ctrl-C nor the notes of other ranks reach.
When NCCL is aborted its kernels end, and the wait with them. After the watchdog of PyTorch's
ProcessGroupNCCL, but that it needs no time limit: the notes say when a wait is in vain.
"""

import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

from hvdlite.request import Descriptor
from hvdlite.waiting import signals

if TYPE_CHECKING:
    from hvdlite.engine.engine import Engine

_EVERY = 0.1  # seconds
_DEAF_AFTER = 10  # looks in which the main thread has not come to handle a Ctrl-C


def watch(engine: "Engine") -> None:
    """Look at the ranks' notes until the engine is closed or broken."""
    args = (weakref.ref(engine),)
    threading.Thread(target=_watch, args=args, name="watchdog", daemon=True).start()


def _watch(alive: "weakref.ref[Engine]") -> None:
    deaf = 0
    while (engine := alive()) is not None and engine.broken is None:
        deaf = deaf + 1 if signals.is_interrupted() else 0
        try:
            if deaf > _DEAF_AFTER:
                raise KeyboardInterrupt
            _look(engine)
        except BaseException as error:
            main = sys._current_frames().get(threading.main_thread().ident)
            engine.give_up(Descriptor("a call", "on the GPU"), error, main)
        del engine
        time.sleep(_EVERY)


def _look(engine: "Engine") -> None:
    """Raise HorovodInternalError where a rank has given up, or left without its part in a call."""
    status = engine.world.status
    for set_id, channel in engine.channels.items():
        if channel.lane.nccl is not None:
            done = channel.finished
            ranks = channel.group.ranks
            late = [rank for rank in ranks if status.progress(rank, set_id).finished < done]
            status.check("a call on the GPU", late)
