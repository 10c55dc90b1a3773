"""Finding and ending a cluster's processes, however they came to be there.

Pid files lie after a crash, so nothing here reads them: a daemon is known by the folder that it
works in, and what a job has started by the variables that Slurm gave it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")
_GRACE = 3  # seconds between SIGTERM and SIGKILL


def _safely(question: Callable[[], object], otherwise: object) -> object:
    """The answer about a process that may have ended meanwhile, or belong to somebody else."""
    try:
        return question()
    except (psutil.Error, OSError):
        return otherwise


def command(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended."""
    return _safely(process.cmdline, [])


def daemons(folder: Path, *names: str) -> list[psutil.Process]:
    """The cluster's daemons with one of these names (default: all); `folder` is the cluster's."""
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] in (names or DAEMONS):
            paths = [one.path for one in _safely(process.open_files, [])]
            paths.append(_safely(process.cwd, ""))
            if any(Path(path).is_relative_to(folder) for path in paths if path):
                found.append(process)
    return found


def of_node(folder: Path, node: str) -> list[psutil.Process]:
    """A node's slurmd, its step daemons, and everything that jobs have started there."""
    log = str(folder / "log" / f"{node}.log")
    found = {
        process
        for process in daemons(folder, "slurmd", "slurmstepd")
        if log in [one.path for one in _safely(process.open_files, [])]
    }
    found |= {process for process, where in _tasks(folder) if where == node}
    return list(_with_children(found))


def of_cluster(folder: Path) -> list[psutil.Process]:
    """Every process of the cluster but munged, which the others need to the end."""
    found = set(daemons(folder, "slurmctld", "slurmd", "slurmstepd"))
    found |= {process for process, _ in _tasks(folder)}
    return list(_with_children(found))


def _tasks(folder: Path) -> list[tuple[psutil.Process, str]]:
    """Processes of jobs and their nodes. A shell that only talks to Slurm has no node's name."""
    found = []
    for process in psutil.process_iter():
        environment = _safely(process.environ, {})
        node = environment.get("SLURMD_NODENAME")
        if node and environment.get("SLURM_CONF") == str(folder / "slurm.conf"):
            found.append((process, node))
    return found


def _with_children(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    found = set(processes)
    for process in list(found):
        found |= set(_safely(lambda one=process: one.children(recursive=True), []))
    return found


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        _safely(lambda one=process: one.send_signal(number), None)


def end(find: Callable[[], list[psutil.Process]]) -> None:
    """End what `find` finds, politely at first; also what it starts meanwhile."""
    processes = find()
    send(processes, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=_GRACE)
    kill(find)


def kill(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill what `find` finds, until it finds nothing."""
    for _ in range(50):
        left = [
            one
            for one in find()
            if _safely(one.status, psutil.STATUS_ZOMBIE) != psutil.STATUS_ZOMBIE
        ]
        if not left:
            return
        send(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.2)
