"""What runs inside each engine: its communicator, and a thread that tells what it waits for.

The notes lie in the folder of the cluster, one file a rank, written while a cell takes long.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

from mpi4py import MPI

from . import patient
from .remote import NOTE_EVERY

_LIBRARIES = tuple(
    os.path.dirname(path) + os.sep
    for path in (os.__file__, MPI.__file__, os.path.dirname(__file__))  # the last: all of hvdlab
)
_CELL = re.compile(r"ipykernel_\d+|<ipython-input")


class _State:
    base: MPI.Intracomm | None = None  # never used but to make new ones
    folder = ""
    thread: threading.Thread | None = None


def install(folder: str) -> dict[str, Any]:
    """Called once on all engines together; returns who this rank is."""
    if _State.base is None:
        _State.base = patient.plain(MPI.COMM_WORLD).Dup()
        MPI.COMM_WORLD = patient.Comm(patient.plain(MPI.COMM_WORLD).Dup())
        _State.folder = folder
        _State.thread = threading.Thread(target=_write_notes, name="notes", daemon=True)
        _State.thread.start()
        _make_exit_an_error()
    host = patient.plain(MPI.COMM_WORLD).Split_type(MPI.COMM_TYPE_SHARED)
    local_rank = host.rank
    host.Free()
    return {
        "rank": MPI.COMM_WORLD.rank,
        "size": MPI.COMM_WORLD.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "local_rank": local_rank,
    }


def _make_exit_an_error() -> None:
    """`quit()` in a cell would end this engine alone, and with it everybody's variables."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.user_ns.update(exit=sys.exit, quit=sys.exit)


def renew() -> None:
    """Called on all engines together after an error or an interrupt: in step again.

    MPI.COMM_WORLD gets a fresh communicator under the same object, so that variables which hold
    it stay valid; messages that were under way are forgotten. hvdlite starts afresh, too.
    """
    import ctypes

    fresh = _State.base.Dup()
    size = MPI._sizeof(MPI.Comm)
    ctypes.memmove(MPI._addressof(MPI.COMM_WORLD), MPI._addressof(fresh), size)
    hvdlite = sys.modules.get("hvdlite")
    mine = bool(hvdlite and hvdlite.is_initialized())
    if any(_State.base.allgather(mine)):
        import hvdlite

        hvdlite.shutdown()
        hvdlite.init()


def _write_notes() -> None:
    main = threading.main_thread().ident
    file = os.path.join(_State.folder, f"rank-{MPI.COMM_WORLD.rank}.json")
    last: tuple = ()
    since = time.time()
    while True:
        time.sleep(NOTE_EVERY)
        frame = sys._current_frames().get(main)
        note = _describe(frame) if frame is not None else {}
        now = (note.get("call"), note.get("line"), note.get("file"))
        if now != last:
            last, since = now, time.time()
        if note:
            note.setdefault("since", since)
        try:
            with open(f"{file}.new", "w") as new:
                json.dump(note, new)
            os.replace(f"{file}.new", file)
        except OSError:
            return  # the cluster has been stopped, and its folder is gone


def _describe(frame: FrameType) -> dict[str, Any]:
    """What the main thread does: the line of the user's code, and the call that it waits in."""
    call = ""
    user: FrameType | None = None
    at: FrameType | None = frame
    while at is not None:
        name, file = at.f_globals.get("__name__", ""), at.f_code.co_filename
        if file.startswith("<frozen importlib"):
            call = ""  # an import that takes long waits for nobody
        elif name.split(".")[0] in ("hvdlite", "horovod"):
            if not at.f_code.co_name.startswith(("_", "call")):  # wrappers have no name to show
                call = f"hvd.{at.f_code.co_name}"  # the outermost of hvdlite's functions
        elif _CELL.search(file) or not (file.startswith((*_LIBRARIES, "<")) or "-packages" in file):
            user = at
            break
        at = at.f_back
    if user is None:
        return {}
    note: dict[str, Any] = {
        "file": "" if _CELL.search(user.f_code.co_filename) else user.f_code.co_filename,
        "line": user.f_lineno,
        "code": linecache.getline(user.f_code.co_filename, user.f_lineno).strip()[:100],
    }
    if patient.Waiting.call:
        note["call"] = f"comm.{patient.Waiting.call}"
        note["peers"] = patient.Waiting.peers
        note["since"] = patient.Waiting.since
    elif call:
        written = re.search(r"\bhvd\.\w+(?=\()", note["code"])
        note["call"], note["peers"] = written[0] if written else call, None
    return note
