"""The launcher's side of the agents: one process on each machine, on others through ssh."""

import contextlib
import queue
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
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
        self._said: queue.SimpleQueue[tuple[subprocess.Popen, str, list[str]]] = queue.SimpleQueue()

    def close(self) -> None:
        """End them, with their ranks and folders."""
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_IDLE_SECONDS)
        for machine in list(self.processes):
            self._drop(machine)
        shutil.rmtree(self.folder, ignore_errors=True)  # if somebody has killed this one's agent

    def start(self, machines: Sequence[str]) -> set[str]:
        """Have an agent on each of these machines; returns those on which there is none."""
        new = [name for name in machines if name not in self.processes]
        for machine in new:
            self._start(machine)
        return self._wait_for("up", new, self.args.start_timeout)

    def _start(self, machine: str) -> None:
        words = [sys.executable, "-m", "hvdrun.elastic.agent", self.folder, *self.modules]
        environment = self.environment
        if machine == THIS_MACHINE:
            pass
        elif "SLURM_JOB_ID" in self.environment:
            words = [*_SRUN, machine, *words]
        else:
            travels = [f"{n}={self.environment[n]}" for n in _TRAVELS if n in self.environment]
            words = [*_SSH, *ssh_options(self.args), machine, shlex.join(["env", *travels, *words])]
            environment = None
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                words, env=environment, stdin=pipe, stdout=pipe, text=True, errors="replace",
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(f"can't start {words[0]}: {error.strerror}") from None
        self.processes[machine] = process
        threading.Thread(target=self._listen, args=(process, machine), daemon=True).start()

    def _listen(self, process: subprocess.Popen, machine: str) -> None:
        with process.stdout as lines:
            for line in lines:
                self._said.put((process, machine, line.split()))
        self._said.put((process, machine, ["lost"]))

    def _drop(self, machine: str) -> None:
        """Forget a machine that has gone, or gives no answer."""
        process = self.processes.pop(machine)
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):  # what it has not read
            process.stdin.close()

    def tell(self, *order: object) -> None:
        """Give all agents an order."""
        for process in self.processes.values():
            with contextlib.suppress(OSError):  # it is gone, which `read` tells
                print(*order, file=process.stdin, flush=True)

    def read(self, seconds: float = 0) -> Iterator[tuple[str, list[str]]]:
        """What agents have said, in words; ["lost"] of one that has ended, which is forgotten."""
        with contextlib.suppress(queue.Empty):
            while True:
                process, machine, words = self._said.get(timeout=seconds)
                if self.processes.get(machine) is process:
                    if words == ["lost"]:
                        self._drop(machine)
                    yield machine, words

    def _wait_for(self, word: str, machines: Sequence[str], seconds: float) -> set[str]:
        """Wait until these agents have said a word; those that don't are forgotten, and returned.

        What else they say is dropped.
        """
        silent, until = set(machines), time.monotonic() + seconds
        while silent & self.processes.keys() and time.monotonic() < until:
            silent -= {machine for machine, words in self.read(0.1) if words == [word]}
        for machine in silent & self.processes.keys():
            self._drop(machine)
        return silent

    def kill_ranks(self) -> None:
        """Leave no rank on any machine; machines that don't answer are forgotten."""
        self.tell("kill")
        self._wait_for("idle", list(self.processes), _IDLE_SECONDS)
