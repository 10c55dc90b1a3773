"""What of a state outlives its process: for horovodrun's elastic jobs, whose ranks start anew.

Each host of such a job has a folder in memory, which horovodrun makes and removes. One rank of each
host writes there what its state keeps at a commit. The ranks of the next generation begin with the
newest of these; since a commit ends with a collective call, no host is more than one behind.
Horovodrun writes there which changes of the hosts there have been.

Where the user names a folder on disk, the first rank writes into that one, too, in any job.
"""

import io
import os
import queue
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hvdlite.basics import local_rank, rank
from hvdlite.objects import allgather_object, broadcast_object
from hvdlite.runtime import launchers
from hvdlite.runtime.ends import tell_launcher

if TYPE_CHECKING:
    from hvdlite.elastic.state import State

_DISK = "HVDLITE_ELASTIC_STATE"  # the variable with the user's folder
_NUMBER = struct.Struct("<q")  # of the commit, before what it keeps


class Restart(SystemExit):
    """Ends this process, since horovodrun starts the ranks anew."""

    restarts = True


def folder() -> Path | None:
    """This host's folder; None where ranks don't come and go."""
    name = os.environ.get(launchers.ELASTIC)
    return Path(name) if name else None


def keep(state: "State") -> None:
    """Write what the state keeps, as the newest commit of this host, and on disk.

    The one before stays until all is written. OSError if the user's folder can't be written.
    """
    for variable, number in ((launchers.ELASTIC, local_rank()), (_DISK, rank())):
        if number == 0 and (name := os.environ.get(variable)):
            if variable is _DISK:
                Path(name).mkdir(parents=True, exist_ok=True)
            new = Path(name, f"state.{rank()}")
            with new.open("wb") as file:
                file.write(_NUMBER.pack(state._commits))
                state._write_kept(file)
                file.flush()
                os.fsync(file.fileno())  # or the new name may come to the disk first
            new.replace(Path(name, "state"))


def recall(state: "State") -> bool:
    """Give the state the newest commit of all hosts; returns whether there is one.

    A call of all ranks.
    """
    names = filter(None, map(os.environ.get, (launchers.ELASTIC, _DISK)))
    found = [(_number(path), path) for path in (Path(name, "state") for name in names)]
    if not found:
        return False
    number, path = max(found)
    numbers = allgather_object(number)
    if not (newest := max(numbers)):
        return False
    root = numbers.index(newest)
    content = broadcast_object(path.read_bytes() if rank() == root else None, root)
    state._commits = newest
    state._read_kept(io.BytesIO(content[_NUMBER.size :]))
    return True


def _number(path: Path) -> int:
    """The number of the commit in this file; 0 without one."""
    try:
        with path.open("rb") as file:
            return _NUMBER.unpack(file.read(_NUMBER.size))[0]
    except FileNotFoundError:
        return 0


def leave() -> Restart:
    """Tell horovodrun that this rank ends to be started anew; returns what to raise."""
    tell_launcher(f"again {launchers.rank_of(os.environ)}")
    sys.stdout.flush()
    return Restart(0)


class HostMessages(queue.Queue):
    """The changes of hosts that a rank has not looked at yet: pairs of a time and what has changed,
    in Horovod's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    def empty(self) -> bool:
        """Whether there is none."""
        host = folder()
        if host is not None and (host / "hosts").exists():
            lines = (host / "hosts").read_text().splitlines()
            for line in lines[self._seen :]:
                time, change = line.split()
                self.put((float(time), int(change)))
            self._seen = len(lines)
        return super().empty()
