"""Which hosts an elastic job has: a discovery script's, or fixed ones; without those that failed.

A host is what discovery calls so: localhost and 127.0.0.1 are two, though MPI sees one machine.
"""

import functools
import os
import random
import shlex
import subprocess
import threading
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import NamedTuple

from hvdrun.errors import LaunchError, say
from hvdrun.hosts import THIS_MACHINE, Hosts, is_local, named, parse_hosts

_ASK_SECONDS = 1.0  # between two calls of the script
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
    """The hosts there are, and their slots; a thread asks the script again and again.

    LaunchError if the script's first call fails; of later ones that do, a line tells.
    """

    def __init__(self, args: Namespace, np: int, environment: Mapping[str, str]):
        self.slots = args.slots or 1  # where no number is told
        self.words = shlex.split(args.discovery or "")
        self._closed = threading.Event()
        self._process: subprocess.Popen | None = None
        if self.words:
            if os.path.exists(self.words[0]):  # as a shell's "./" would say
                self.words[0] = os.path.abspath(self.words[0])
            self.found = self._ask()
            threading.Thread(target=self._ask_again, daemon=True).start()
        else:
            self.found = self._read(named(args, np, environment)[0])

    def _read(self, hosts: Hosts) -> dict[str, int]:
        return {name: self.slots if slots is None else slots for name, slots in hosts}

    def _ask(self) -> dict[str, int]:
        script, null = f"--host-discovery-script {shlex.join(self.words)}", subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                self.words, stdin=null, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            text = self._process.communicate()[0]
        except OSError as error:
            raise LaunchError(f"{script}: {error.strerror}") from None
        if self._process.returncode:
            raise LaunchError(f"{script} ended with code {self._process.returncode}")
        found = [word for word in text.split() if not word.endswith(":0")]
        return self._read(parse_hosts(" ".join(found))) if found else {}

    def _ask_again(self) -> None:
        while not self._closed.wait(_ASK_SECONDS):
            try:
                self.found = self._ask()
            except LaunchError as error:
                if not self._closed.is_set():
                    say(f"{error}; the hosts stay as they were")

    def close(self) -> None:
        """Ask no more; a script that runs is stopped."""
        self._closed.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


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

    def close(self) -> None:
        """Ask for hosts no more."""
        self.discovery.close()

    def slots(self) -> list[Slot]:
        """The slots for a generation that would start now, in the order of its ranks."""
        found, now = self.discovery.found, time.monotonic()
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
