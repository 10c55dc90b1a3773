"""Which hosts an elastic job has: a discovery script's, or fixed ones; without those that failed.

A host is what discovery calls so: localhost and 127.0.0.1 are two, though MPI sees one machine.
"""

import contextlib
import functools
import os
import random
import shlex
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import NamedTuple

from hvdrun.errors import LaunchError, say
from hvdrun.hosts import THIS_MACHINE, Hosts, is_local, parse_hosts, read_hostfile
from hvdrun.slurm import allocated_hosts

_LOOK_SECONDS = 1.0  # between two calls of the script
_SCRIPT_SECONDS = 60.0  # that a call may take
REMOVED, ADDED = 1, 2  # what has changed, in Horovod's numbers; 3 is both


class Slot(NamedTuple):
    """A place for a rank: the n-th of a host."""

    host: str
    index: int

    @property
    def machine(self) -> str:
        """The host's name for MPI."""
        return machine_of(self.host)


@functools.cache
def machine_of(host: str) -> str:
    """The host's name for MPI and ssh: all names of this machine are one."""
    return THIS_MACHINE if is_local(host) else host


class Discovery:
    """The hosts there are, and their slots; a script is asked again and again, never waited for.

    LaunchError if the script's first call fails; of later ones that do, a line tells.
    """

    def __init__(self, args: Namespace, np: int, environment: Mapping[str, str]):
        self.slots = args.slots or 1  # where the script names none
        self.words: list[str] = []
        self.process: subprocess.Popen | None = None
        self.next_look = 0.0
        if args.discovery:
            self.words = shlex.split(args.discovery)
            if os.path.exists(self.words[0]):  # as a shell's "./" would say
                self.words[0] = os.path.abspath(self.words[0])
            self.output = tempfile.TemporaryFile("w+")
            self.found: dict[str, int] = {}
            self._start()
            self.process.wait(_SCRIPT_SECONDS)
            self.found = self._result()
        else:
            self.found = self._read(self._fixed(args, np, environment))

    def _fixed(self, args: Namespace, np: int, environment: Mapping[str, str]) -> Hosts:
        if args.hosts is not None:
            return parse_hosts(args.hosts)
        if args.hostfile is not None:
            return read_hostfile(args.hostfile)
        return allocated_hosts(environment) or [(THIS_MACHINE, np)]

    def _read(self, hosts: Hosts) -> dict[str, int]:
        return {name: self.slots if slots is None else slots for name, slots in hosts}

    def _start(self) -> None:
        self.output.seek(0)
        self.output.truncate()
        null = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                self.words, stdin=null, stdout=self.output, start_new_session=True
            )
        except OSError as error:
            raise LaunchError(
                f"--host-discovery-script {self.words[0]}: {error.strerror}"
            ) from None
        self.next_look = time.monotonic() + _LOOK_SECONDS

    def _result(self) -> dict[str, int]:
        process, self.process = self.process, None
        if process.returncode:
            raise LaunchError(
                f"--host-discovery-script {shlex.join(self.words)} ended with code "
                f"{process.returncode}"
            )
        self.output.seek(0)
        found = [word for word in self.output.read().split() if not word.endswith(":0")]
        return self._read(parse_hosts(" ".join(found))) if found else {}

    def look(self) -> dict[str, int]:
        """The hosts by the last answer."""
        now = time.monotonic()
        if self.process is not None and now > self.next_look + _SCRIPT_SECONDS:
            self.process.kill()
        try:
            if self.process is None and self.words and now > self.next_look:
                self._start()
            elif self.process is not None and self.process.poll() is not None:
                self.found = self._result()
        except LaunchError as error:
            say(f"{error}; the hosts stay as they were")
            self.next_look = now + 10 * _LOOK_SECONDS
        return self.found

    def close(self) -> None:
        """Stop the script, if it runs."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, 9)
            self.process.wait()


class Pool:
    """The hosts that the job may use, the oldest first, as those have the training's state.

    One that fails is left out: for good, or with --blacklist-cooldown-range LOW HIGH for a time
    that doubles with each failure (Horovod's rule).
    """

    def __init__(self, args: Namespace, np: int, environment: Mapping[str, str]):
        self.range, self.most = args.cooldown_range, args.max_np
        if self.range and not 1 <= self.range[0] <= self.range[1] <= 3600:
            raise LaunchError("--blacklist-cooldown-range takes two numbers of seconds, the "
                              "smaller first, from 1 to 3600")  # fmt: skip
        self.discovery = Discovery(args, np, environment)
        self.failures: dict[str, int] = {}
        self.out_until: dict[str, float] = {}
        self.out_for: dict[str, float] = {}
        self.order: list[str] = []
        self.first_ranks: dict[Slot, int] = {}

    def slots(self) -> list[Slot]:
        """The slots for a generation that would start now, in the order of its ranks."""
        found, now = self.discovery.look(), time.monotonic()
        usable = [name for name in found if self.out_until.get(name, 0) <= now]
        self.order = [name for name in self.order if name in usable]
        self.order += [name for name in usable if name not in self.order]
        slots = [Slot(name, index) for name in self.order for index in range(found[name])]
        slots = slots[: self.most]
        machines = list(dict.fromkeys(slot.machine for slot in slots))
        return sorted(slots, key=lambda slot: machines.index(slot.machine))

    def leave_out(self, host: str) -> None:
        """Leave out a host that has failed."""
        count = self.failures[host] = self.failures.get(host, 0) + 1
        seconds = float("inf")
        if self.range:
            low, high = self.range
            seconds = max(low, min(high, low * (2**count + random.random())))
        self.out_for[host] = seconds
        self.out_until[host] = time.monotonic() + seconds

    def go_on(self) -> None:
        """All ranks are up again: the time of hosts that are left out begins now, since their
        return costs a further start."""
        for host in filter(self.is_out, self.out_for):
            self.out_until[host] = time.monotonic() + self.out_for[host]
        self.out_for.clear()

    def is_out(self, host: str) -> bool:
        """Whether the host is left out now."""
        return self.out_until.get(host, 0) > time.monotonic()

    def can_have(self, count: int) -> bool:
        """Whether there may be so many slots at some time."""
        found = self.discovery.found.items()
        slots = sum(slots for name, slots in found if not self.is_lost(name))
        return bool(self.discovery.words) or slots >= count

    def is_lost(self, host: str) -> bool:
        """Whether the host is left out for good."""
        return self.out_until.get(host) == float("inf")

    def variables(self, slots: list[Slot]) -> dict[str, dict[str, str]]:
        """What each rank finds in its environment: its host, and as in Horovod, where the process
        lives on, the rank that this slot had at its first start."""
        self.first_ranks = {
            slot: self.first_ranks.get(slot, rank) for rank, slot in enumerate(slots)
        }
        return {
            str(rank): {"HOROVOD_HOSTNAME": slot.host, "HOROVOD_RANK": str(self.first_ranks[slot])}
            for rank, slot in enumerate(slots)
        }


def change(old: list[Slot], new: list[Slot]) -> int:
    """What is different: 0, REMOVED, ADDED, or both."""
    return REMOVED * bool(set(old) - set(new)) | ADDED * bool(set(new) - set(old))
