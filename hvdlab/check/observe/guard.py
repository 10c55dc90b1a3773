"""Keeps the script's hands off what is not its own, and says so in the record.

The kernel refuses the same where it can (`hvdlab.check.confine`); this tells who asked for it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from .recorder import Recorder

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.rename": 2, "os.truncate": 1, "os.link": 2,
    "os.symlink": 2, "os.chmod": 1, "os.chown": 1, "shutil.rmtree": 1,
}  # fmt: skip


def watch(record: Recorder, folder: Path) -> None:
    """From now on refuse to write outside of `folder`, and to leave this machine by network."""
    allowed = (str(folder), os.path.realpath(folder), tempfile.gettempdir(), "/dev/null")

    def check(path: Any, event: str) -> None:
        if isinstance(path, int) or path is None:
            return
        place = os.path.realpath(os.fsdecode(path))
        if place.startswith("/memfd:"):
            return
        if not any(place == root or place.startswith(root + "/") for root in allowed):
            record("outside", path=place, by=event, where=record.where())
            raise PermissionError(f"the check lets a script write in its own folder only: {place}")

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            path, mode, flags = args
            writes = flags & WRITING if flags else mode and set("wax+") & set(mode)
            if writes:
                check(path, "open")
        elif event in CHANGES:
            for path in args[: CHANGES[event]]:
                check(path, event)
        elif event == "import":
            record.alive()
        elif event == "socket.connect":
            address = args[1]
            if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1")):
                record("network", address=str(address[0]), where=record.where())
                raise ConnectionRefusedError("the check has no network")

    sys.addaudithook(hook)
