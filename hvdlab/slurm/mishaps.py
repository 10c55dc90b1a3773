"""Bad luck on demand: a lost node, a preempted job, a time limit; and the node's repair."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable

from . import processes
from .cluster import Cluster, SlurmError

_REACTION = 20  # seconds that slurmctld has to act on a job


def fail(cluster: Cluster, node: str) -> None:
    """Lose a node as if its power had gone: its slurmd and all ranks on it end without a word."""
    _check(cluster, node)
    lost = processes.of_node(cluster.folder, node)
    # A dead machine sends nothing, not even the end of a connection. So everything stops, Slurm
    # hears what it would find out after SlurmdTimeout, and only then do the processes go.
    processes.send(lost, signal.SIGSTOP)
    try:
        cluster.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost its power")
        deadline = time.monotonic() + _REACTION
        while cluster.ask("squeue", "-h", "-t", "R", "-w", node).strip():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        processes.kill(lambda: processes.of_node(cluster.folder, node))


def resume(cluster: Cluster, node: str) -> None:
    """Bring a lost node back."""
    _check(cluster, node)
    if node in cluster.missing():
        # What the dead step daemons left would be in the way of the same job's next start.
        for top in ("spool", "tmp"):
            shutil.rmtree(cluster.folder / top / node)
            (cluster.folder / top / node).mkdir()
        cluster.start_node(node)
    state = cluster.ask("sinfo", "-h", "-N", "-n", node, "-p", "main", "-o", "%T")
    if state.strip().startswith(("down", "drain")):
        cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.wait_for(
        lambda: (
            cluster.ask("sinfo", "-h", "-N", "-n", node, "-p", "main", "-o", "%T").strip()
            in ("idle", "mixed", "allocated", "completing")
        ),
        f"{node} did not come back",
    )


def preempt(cluster: Cluster, job: str) -> int:
    """Let an urgent job take the nodes of a running one, which goes back into the queue.

    Returns the seconds that Slurm gives the job, from its warning on, to clear the nodes itself.
    """
    nodes = _running(cluster, job)
    cluster.ask(
        "sbatch", "--partition=urgent", "--exclusive", f"--nodelist={nodes}", "--time=1",
        "--job-name=urgent", "--output=/dev/null", "--chdir=/", "--wrap=sleep 10",
    )  # fmt: skip
    shown = cluster.ask("scontrol", "show", "partition", "main")
    return int(shown.partition("GraceTime=")[2].split()[0])


def time_out(cluster: Cluster, job: str, tell: Callable[[str], None] = lambda line: None) -> str:
    """Let a running job reach its time limit; returns its state then, "" if it is over.

    `tell` is called every ten seconds with a line about how far it is.

    Slurm counts in minutes and looks every 30 seconds, so this waits for up to about two minutes.
    A job that goes back into the queue gets its old limit back.
    """
    _running(cluster, job)
    words = cluster.ask("squeue", "-h", "-j", job, "-O", "TimeUsed:30,TimeLimit:30").split()
    change = ["update", f"JobId={job}"]
    cluster.ask("scontrol", *change, f"TimeLimit={minutes(words[0]) + 1}")
    state, next_line = "RUNNING", time.monotonic()
    try:
        while state == "RUNNING":
            if time.monotonic() > next_line:
                next_line += 10
                used = cluster.ask("squeue", "-h", "-j", job, "-o", "%M of %l").strip()
                tell(f"job {job} has run for {used}")
            time.sleep(0.5)
            state = _state(cluster, job)[0]
    finally:
        if state:
            cluster.ask("scontrol", *change, f"TimeLimit={words[1]}")
    return state


def minutes(text: str) -> int:
    """Whole minutes in Slurm's "days-hours:minutes:seconds"."""
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + part
    return int(days or 0) * 24 * 60 + seconds // 60


def _check(cluster: Cluster, node: str) -> None:
    if node not in cluster.nodes():
        raise SlurmError(f"there is no {node!r}; the nodes are {', '.join(cluster.nodes())}")


def _running(cluster: Cluster, job: str) -> str:
    """The nodes of a job that runs; raises SlurmError for any other."""
    if not re.fullmatch(r"\d+(_\d+)?", job):
        raise SlurmError(f"{job!r} is not a job's number; squeue lists them")
    state, nodes = _state(cluster, job)
    if state != "RUNNING":
        known = f"it is {state.lower()}" if state else "it is over, or never was; squeue lists all"
        raise SlurmError(f"job {job} does not run; {known}")
    return nodes


def _state(cluster: Cluster, job: str) -> tuple[str, str]:
    """State and nodes of a job; two empty texts if there is none of this number."""
    # Asked for one job by its number, squeue takes an old one for a mistake.
    for line in cluster.ask("squeue", "-h", "-o", "%i|%T|%N").splitlines():
        number, state, nodes = line.strip().split("|")
        if number == job:
            return state, nodes
    return "", ""
