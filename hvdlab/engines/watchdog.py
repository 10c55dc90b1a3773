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

PATIENCE = 5.0  # seconds between asking the processes to end and killing them


def remember(record: Path, kernel: int, roots: list[int], folder: Path) -> None:
    """Write down these processes and all that they have started."""
    found: dict[int, float] = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            for one in [process, *process.children(recursive=True)]:
                found[one.pid] = one.create_time()
        except psutil.NoSuchProcess:
            continue
    content = {
        "kernel": [kernel, psutil.Process(kernel).create_time()],
        "processes": list(found.items()),
        "folder": str(folder),
    }
    record.write_text(json.dumps(content))


def is_orphan(record: Path) -> bool:
    """Whether the kernel that has written the record is gone."""
    try:
        pid, created = json.loads(record.read_text())["kernel"]
    except (OSError, ValueError, KeyError):
        return False
    return not _alive(pid, created)


def clean_up(record: Path) -> int:
    """Stop all processes of a record, and remove its files; how many were still there."""
    try:
        content = json.loads(record.read_text())
    except (OSError, ValueError):
        return 0
    left = [psutil.Process(p) for p, created in content["processes"] if _alive(p, created)]
    for one in list(left):
        try:
            left += [child for child in one.children(recursive=True) if child not in left]
        except psutil.NoSuchProcess:
            continue
    for how in ("terminate", "kill"):
        for process in left:
            try:
                getattr(process, how)()
            except psutil.NoSuchProcess:
                pass
        _, still = psutil.wait_procs(left, PATIENCE)
        if not still:
            break
    shutil.rmtree(content["folder"], ignore_errors=True)
    record.unlink(missing_ok=True)
    return len(left)


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
