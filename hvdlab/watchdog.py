"""Stops a cluster whose notebook is gone, however it went.

    python watchdog.py RECORD

It reads its standard input, whose other end only the notebook's kernel holds: when the kernel
ends, restarts or is killed, the input ends, and all processes of the record are stopped.
The kernel says "done" before it leaves in good order.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import psutil

MARK = "HVDLAB_ENGINES"  # in the environment of all processes of a cluster: its folder
# In the command lines of processes that, once those they watch are gone, remove their files.
GUARDS = ("horovodrun-guard", os.path.basename(__file__))
PATIENCE = 5.0  # seconds between asking the processes to end and killing them


def remember(record: Path, kernel: int, folder: Path) -> None:
    """Write down whose cluster this is, before any of its processes is started."""
    content = {"kernel": [kernel, psutil.Process(kernel).create_time()], "folder": str(folder)}
    record.write_text(json.dumps(content))


def processes(folder: str, mark: str = MARK) -> list[psutil.Process]:
    """All processes of this user that the cluster of that folder has started.

    They carry its name in their environment, so no other process can be taken for one of them.
    """
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.uids().real == os.getuid() and process.environ().get(mark) == folder
        except (psutil.Error, OSError):
            continue
        if mine and process.pid != os.getpid():
            found.append(process)
    return found


def is_orphan(record: Path) -> bool:
    """Whether the kernel that has written the record is gone."""
    try:
        pid, created = json.loads(record.read_text())["kernel"]
    except (OSError, ValueError, KeyError):
        return False
    return not _alive(pid, created)


def clean_up(record: Path) -> int:
    """Stop all processes of a record, and remove its files; how many were there."""
    try:
        content = json.loads(record.read_text())
    except (OSError, ValueError):
        return 0
    count = end(content["folder"])
    shutil.rmtree(content["folder"], ignore_errors=True)
    record.unlink(missing_ok=True)
    return count


def end(folder: str, mark: str = MARK, politely: bool = True) -> int:
    """Stop all processes that carry the mark; how many there were.

    They are asked first, if `politely`. Guards get the time to do their work.
    """
    left = processes(folder, mark)
    count = len(left)
    for how in ("ask", "kill", "kill guards")[0 if politely else 1 :]:
        for process in left:
            try:
                if how == "kill guards" or not _is_guard(process):
                    process.terminate() if how == "ask" else process.kill()
            except psutil.Error:
                pass
        psutil.wait_procs(left, PATIENCE)
        left = processes(folder, mark)  # with what was started meanwhile
        if not left:
            break
    return count


def _is_guard(process: psutil.Process) -> bool:
    return any(word.endswith(GUARDS) for word in process.cmdline())


def _alive(pid: int, created: float) -> bool:
    """Whether that very process is still there, and not another one under its number."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main(record: Path) -> None:
    """Wait for the end of the input, then clean up unless all was left in order."""
    if os.read(0, 16) != b"done":
        clean_up(record)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
