"""What a rehearsal costs: processes, memory, ports, and what it gets from elsewhere."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs
import psutil

from .. import watchdog
from ..data.export import keras_folder

MARK = "HVDLAB_REHEARSAL"  # in the environment of all its processes: its folder
EVERY = 1.0  # seconds between two looks


@dataclass
class Seen:
    """The most of each at any moment, in all; `disk` is what a student's folder grew to."""

    processes: int = 0
    memory: int = 0  # bytes
    ports: int = 0
    open_ports: int = 0  # of them those that other machines can reach
    disk: int = 0  # bytes
    asked: set[str] = field(default_factory=set)  # addresses beyond this machine
    fetched: dict[str, int] = field(default_factory=dict)  # what came from elsewhere: files, bytes


class Watch:
    """Looks while the block runs, and marks what is started in it; gives a Seen."""

    def __init__(self, folder: str):
        self.folder, self.seen = folder, Seen()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Seen:
        os.environ[MARK] = self.folder
        self._before = _downloads()
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        del os.environ[MARK]
        now = _downloads()
        self.seen.fetched = {name: now[name] for name in now.keys() - self._before.keys()}

    def _look(self) -> None:
        while not self._end.wait(EVERY):
            memory, ports = 0, {}
            found = watchdog.processes(self.folder, MARK)
            for process in found:
                with contextlib.suppress(psutil.Error):
                    full = process.memory_full_info()
                    memory += getattr(full, "pss", full.rss)
                    for one in process.net_connections("inet"):
                        self._note(one, ports)
            seen = self.seen
            seen.processes = max(seen.processes, len(found))
            seen.memory, seen.ports = max(seen.memory, memory), max(seen.ports, len(ports))
            seen.open_ports = max(seen.open_ports, sum(ports.values()))

    def _note(self, connection: psutil._common.sconn, ports: dict[int, bool]) -> None:
        if connection.raddr:
            if not ipaddress.ip_address(connection.raddr.ip).is_loopback:
                self.seen.asked.add(connection.raddr.ip)
        elif connection.status == psutil.CONN_LISTEN:
            ports[connection.laddr.port] = not ipaddress.ip_address(connection.laddr.ip).is_loopback


def _downloads() -> dict[str, int]:
    """The files in the folders that the course's programs keep for what they fetch alone.

    Beside these lies what they have computed, and would compute again: timings, compiled kernels,
    lists of fonts, settings. Files that begin with a dot are notes on a download, such as locks.
    """
    cache, home = platformdirs.user_cache_path, os.environ.get
    places = [cache("hvdlite") / "data", keras_folder(), keras_folder().with_name("models")]
    places.append(Path(home("TORCH_HOME") or cache("torch")) / "hub")
    places.append(Path(home("HF_HOME") or cache("huggingface")) / "hub")
    return {
        str(path): path.stat().st_size
        for place in places
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink()
        if not any(part.startswith(".") for part in path.relative_to(place).parts)
    }
