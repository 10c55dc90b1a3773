"""Slurm jobs from a notebook: a cluster to talk to, submit, wait, and read what became of them.

where = jobs.connect()          # the class's cluster, or one of this machine; "" without Slurm
job = jobs.submit("who.sbatch")
job.wait()                      # its state at the end, such as "COMPLETED"
print(job.output())
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from .slurm.cluster import Cluster, SlurmError, pmix_cure

LIMIT = 240.0  # seconds that a job of the labs may take, with its waiting
_OPEN = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
_here: Cluster | None = None


def connect() -> str:
    """Let the notebook's commands talk to a cluster; says which one, "" if there is none.

    If `sinfo` already finds one, it is the class's; otherwise one is started on this machine
    with two nodes, and ends with `disconnect()` or the notebook. Without Slurm it says what to
    install.
    """
    global _here
    if _here is None and _ask("sinfo", "-h", "-o", "%N"):
        print("This is the class's cluster: " + _ask("sinfo", "-h", "-o", "%N").strip())
        return "class"
    cluster = Cluster()
    try:
        started = cluster.up(nodes=2)
    except SlurmError as error:
        print(f"No Slurm here, so the exercises can't be done now.\n{error}")
        return ""
    if started:
        atexit.register(cluster.down)
    _here = cluster
    os.environ.update(cluster.environment())
    print(f"A Slurm of this machine is up, with the nodes {', '.join(cluster.nodes())}.")
    if cure := pmix_cure():
        print(f"`srun --mpi=pmix` needs one package more:\n  {cure}")
    return "here"


def disconnect() -> None:
    """End the cluster that `connect()` has started, with all its jobs."""
    global _here
    if _here is not None:
        _here.down()
        atexit.unregister(_here.down)
        _here = None


@dataclass
class Job:
    """A job that was submitted: its number, and the file that it writes its output to."""

    number: str
    file: Path

    def about(self, name: str) -> str:
        """What `scontrol show job` says of it, such as JobState, Reason, NodeList, Restarts."""
        found = re.search(rf"\b{name}=(\S*)", _ask("scontrol", "show", "job", self.number))
        return found[1] if found else ""

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.about("JobState") in _OPEN

    def wait(self, limit: float = LIMIT, until: str = "") -> str:
        """Wait for its end, or for the state `until`; returns its state then.

        After `limit` seconds it is cancelled.
        """
        deadline = time.monotonic() + limit
        while (state := self.about("JobState")) in _OPEN and state != until:
            if time.monotonic() > deadline:
                self.cancel()
                print(f"job {self.number} was still {state} after {limit:g} s, and was cancelled")
                break
            time.sleep(0.3)
        return state

    def output(self) -> str:
        """What it has written so far."""
        return self.file.read_text(errors="replace") if self.file.exists() else ""

    def cancel(self) -> None:
        """End it."""
        _ask("scancel", self.number)


def submit(file: str | os.PathLike[str], *options: str) -> Job:
    """Submit a file as `sbatch FILE` does.

    Raises:
        SlurmError: Slurm doesn't take it; the message is Slurm's.
    """
    text = Path(file).read_text(encoding="utf-8")
    if not text.startswith("#!"):
        raise SlurmError(f"{file} must begin with a line such as #!/bin/bash")
    return _sbatch([*options, str(file)], str(file))


def submit_command(command: str, *options: str) -> Job:
    """Submit one command, as `sbatch --wrap` does; see `submit`."""
    return _sbatch([*options, "--time=5", f"--wrap={command}"], command)


def lose_a_node(job: Job) -> str:
    """Take the nodes away from a running job, and give them back; says what was done.

    On this machine's cluster its last node loses its power and is repaired; on another one the
    job is put back into the queue, which is what Slurm does then.
    """
    if _here is None:
        _ask("scontrol", "requeue", job.number)
        return f"job {job.number} was put back into the queue"
    from .slurm import mishaps

    node = _here.nodes()[-1]
    mishaps.fail(_here, node)
    mishaps.resume(_here, node)
    return f"{node} has lost its power, and was repaired"


def _sbatch(words: list[str], what: str) -> Job:
    done = subprocess.run(
        ["sbatch", "--parsable", *words], capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise SlurmError(f"sbatch does not take it: {done.stderr.strip()}")
    job = Job(done.stdout.strip().partition(";")[0], Path())
    job.file = Path(job.about("StdOut"))
    print(f"submitted as job {job.number}: {what}")
    return job


def _ask(*words: str) -> str:
    """The output of one of Slurm's commands; "" if it fails or isn't there."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
