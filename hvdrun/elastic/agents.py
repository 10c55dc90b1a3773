"""The launcher's side of the agents: one process on each machine, on others through ssh."""

import contextlib
import json
import secrets
import selectors
import shlex
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence

from hvdrun.errors import LaunchError
from hvdrun.hosts import THIS_MACHINE, ssh_options
from hvdrun.mpi import memory_folder

_TRAVELS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED")
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
        "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3")  # fmt: skip
# A step beside that of mpirun, on the same processors.
_SRUN = ("srun", "--overlap", "-N1", "-n1", "--mpi=none", "--cpu-bind=none", "-w")
_IDLE_SECONDS = 15.0  # for an agent to kill its ranks


class Agents:
    """The agents of a job, which end with it. `modules` are imported once on each machine."""

    def __init__(self, args: Namespace, environment: Mapping[str, str], modules: Sequence[str]):
        self.args, self.environment, self.modules = args, environment, modules
        self.folder = f"{memory_folder(environment)}/hvd-{secrets.token_hex(8)}"
        self.processes: dict[str, subprocess.Popen] = {}  # by machine
        self._rest: dict[str, bytes] = {}
        self._lost: set[str] = set()
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "Agents":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.processes.values():
            try:
                process.wait(_IDLE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)  # if somebody has killed this one's agent

    def start(self, machines: Sequence[str]) -> list[str]:
        """Have an agent on each of these machines; returns those on which there is none."""
        new = [name for name in machines if name not in self.processes]
        for machine in new:
            self._start(machine)
        up: set[str] = set()
        until = time.monotonic() + self.args.start_timeout
        while not up | self._lost >= set(new) and time.monotonic() < until:
            up |= {machine for machine, words in self.read(0.1) if words == ["up"]}
        failed = [name for name in new if name not in up]
        for machine in failed:
            self.drop(machine)
        return failed

    def _start(self, machine: str) -> None:
        words = [sys.executable, "-m", "hvdrun.elastic.agent", self.folder, *self.modules]
        environment = None
        if machine == THIS_MACHINE:
            environment = self.environment
        elif "SLURM_JOB_ID" in self.environment:
            environment, words = self.environment, [*_SRUN, machine, *words]
        else:
            travels = [f"{n}={self.environment[n]}" for n in _TRAVELS if n in self.environment]
            words = [*_SSH, *ssh_options(self.args), machine, shlex.join(["env", *travels, *words])]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                words, env=environment, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"can't start {words[0]}: {error.strerror}") from None
        self.processes[machine], self._rest[machine] = process, b""
        self._lost.discard(machine)
        self._selector.register(process.stdout, selectors.EVENT_READ, machine)

    def drop(self, machine: str) -> None:
        """Forget a machine that has gone, or gives no answer."""
        process = self.processes.pop(machine)
        if machine not in self._lost:
            self._selector.unregister(process.stdout)
        self._lost.discard(machine)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def tell(self, **order: object) -> None:
        """Give all agents an order."""
        for process in self.processes.values():
            with contextlib.suppress(OSError):  # it is gone, which `read` tells
                process.stdin.write(json.dumps(order).encode() + b"\n")

    def read(self, seconds: float = 0) -> Iterator[tuple[str, list[str]]]:
        """What agents have said, in words; ["lost"] of one that has ended."""
        for key, _ in self._selector.select(seconds):
            data = key.fileobj.read(1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
                self._lost.add(key.data)
                yield key.data, ["lost"]
            *lines, self._rest[key.data] = (self._rest[key.data] + data).split(b"\n")
            for line in lines:
                yield key.data, line.decode().split()

    def kill_ranks(self) -> None:
        """Leave no rank on any machine; machines that don't answer are forgotten."""
        self.tell(order="kill")
        busy = set(self.processes) - self._lost
        until = time.monotonic() + _IDLE_SECONDS
        while busy and time.monotonic() < until:
            busy -= {machine for machine, words in self.read(0.1) if words in (["idle"], ["lost"])}
        for machine in busy | self._lost:
            self.drop(machine)
