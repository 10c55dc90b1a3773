"""One process fetches, the others wait for it; none of them needs MPI for that."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .catalog import DataError

LOCK = ".lock"
HOLDER = ".lock-holder.json"
FAILURE = ".last-failure.json"
PARTIAL = ".partial-"

# How long a failure speaks for the processes that ask after it. The ranks of a job start
# at different moments, and all of them must get the same answer.
FAILURE_LASTS_S = 60.0


def say(text: str) -> None:
    """One line for the user, on stderr."""
    print(f"hvdlab data: {text}", file=sys.stderr, flush=True)


@contextmanager
def only_one(folder: Path, title: str) -> Iterator[None]:
    """Hold the folder's lock; while another process has it, wait and say whom for.

    The system frees the lock when its holder dies, however it dies. Ctrl-C ends the wait.

    Raises:
        DataError: the folder can't be made or written.
    """
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock, folder, title)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        (folder / HOLDER).write_text(json.dumps(holder))
        _sweep(folder)
        yield
    except OSError as error:
        raise DataError(
            f"the cache {folder} can't be used ({error.strerror or error}). Set XDG_CACHE_HOME "
            "to a folder that you may write to, or HVDLITE_DATA_DIR to one with the data"
        ) from None
    finally:
        if lock.is_locked:
            (folder / HOLDER).unlink(missing_ok=True)
            lock.release()


def _acquire(lock: FileLock, folder: Path, title: str) -> None:
    next_word = time.monotonic() + 2.0
    while True:
        try:
            # Short waits in a loop, so that an interrupt comes through at once.
            lock.acquire(timeout=0.5, poll_interval=0.05)
            return
        except Timeout:
            if time.monotonic() > next_word:
                say(f"waiting for {_holder(folder)}, which is fetching {title} into {folder}")
                next_word = time.monotonic() + 30.0


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / HOLDER).read_text())
        seconds = max(0, round(time.time() - holder["since"]))
        return f"process {holder['pid']} on {holder['host']} (since {seconds} s)"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _sweep(folder: Path) -> None:
    """Remove what a killed process left half-written; only the lock's holder writes here."""
    for rest in folder.glob(f"{PARTIAL}*"):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


def note_failure(folder: Path, sources: list[str], message: str) -> None:
    """Leave word for the processes that wait, so that they need not fail one by one."""
    record = {"time": time.time(), "sources": sources, "message": message}
    (folder / FAILURE).write_text(json.dumps(record))


def recent_failure(folder: Path, sources: list[str], since: float) -> str | None:
    """Why another process just failed with the same sources, or None.

    Args:
        since: time.time() from which on a failure counts.
    """
    try:
        record = json.loads((folder / FAILURE).read_text())
        if record["sources"] == sources and since <= record["time"] <= time.time() + 1:
            return str(record["message"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def forget_failure(folder: Path) -> None:
    """The data is there now: a failure of before means nothing any more."""
    (folder / FAILURE).unlink(missing_ok=True)
