"""Which hosts the scheduler of a cluster has given to this job: Slurm, PBS or LSF.

Slurm describes them in variables (`slurm.py`). PBS and LSF name a file with one line for each slot,
and LSF also has the variable LSB_MCPU_HOSTS, "HOST SLOTS HOST SLOTS ...".
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hvdrun.errors import LaunchError
from hvdrun.options import read_file
from hvdrun.slurm import allocated_hosts

_FILES = {"PBS": "PBS_NODEFILE", "LSF": "LSB_DJOB_HOSTFILE"}
_LSF_LIST = "LSB_MCPU_HOSTS"


class Allocation(NamedTuple):
    """What a scheduler has given, and its name for messages."""

    scheduler: str
    hosts: list[tuple[str, int]]


def allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The hosts of this job and the slots on each, in the scheduler's order; None outside of one.

    Raises LaunchError if the scheduler's list can't be read.
    """
    if hosts := allocated_hosts(environment):
        return Allocation("Slurm", hosts)
    for scheduler, variable in _FILES.items():
        if path := environment.get(variable):
            names = read_file(path, f"{scheduler}'s list of hosts (${variable})").split()
            if not names:
                raise LaunchError(f"{scheduler}'s list of hosts {path} (${variable}) is empty")
            return Allocation(scheduler, list(Counter(names).items()))
    if text := environment.get(_LSF_LIST):
        words = text.split()
        if len(words) % 2 or not all(slots.isdigit() for slots in words[1::2]):
            raise LaunchError(f"can't read LSF's list of hosts (${_LSF_LIST}) {text!r}")
        return Allocation("LSF", list(zip(words[::2], map(int, words[1::2]), strict=True)))
    return None
