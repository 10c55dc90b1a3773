"""What Slurm tells a process inside an allocation: which hosts, how many tasks on each."""

import re
from collections.abc import Mapping
from itertools import product

from hvdrun.errors import LaunchError

# Slurm's variables that programs like to read; all others describe tasks that we don't start.
_HARMLESS = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_END_TIME", "SLURM_RESTART_COUNT"),
    *("SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_CPUS_"),
)
_INTERACTIVE_STEP = "4294967290"  # the shell that salloc opens; its one task is no job step


def expand_nodelist(text: str) -> list[str]:
    """The host names in a compressed list: "n[01-02,05],gpu3" is n01, n02, n05, gpu3."""
    item = r"(?:[\w.-]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+"
    if not re.fullmatch(f"{item}(?:,{item})*", text):
        raise LaunchError(f"can't read Slurm's node list {text!r}")
    names: list[str] = []
    for host in re.findall(item, text):
        parts = re.split(r"\[(.*?)\]", host)
        choices = [_expand_ranges(p) if i % 2 else [p] for i, p in enumerate(parts)]
        names += ["".join(choice) for choice in product(*choices)]
    return names


def _expand_ranges(text: str) -> list[str]:
    return [
        str(number).zfill(len(first))
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)
        for number in range(int(first), int(last or first) + 1)
    ]


def expand_counts(text: str) -> list[int]:
    """The number of tasks on each node: "2(x3),1" is 2, 2, 2, 1."""
    item = r"(\d+)(?:\(x(\d+)\))?"
    if not re.fullmatch(f"{item}(?:,{item})*", text):
        raise LaunchError(f"can't read Slurm's task counts {text!r}")
    return [int(n) for n, times in re.findall(item, text) for _ in range(int(times or 1))]


def check_step(environment: Mapping[str, str], np: int) -> None:
    """Refuse to run as one of several tasks of srun: each would start all ranks again."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    in_step = {"SLURM_STEP_ID", "SLURM_STEPID"} & environment.keys()
    if in_step and tasks.isdigit() and int(tasks) > 1:
        if environment.get("SLURM_PROCID", "0") != "0":
            raise LaunchError("")  # task 0 speaks for all
        raise LaunchError(
            f"srun started this launcher {tasks} times, and each would start {np} ranks; use "
            f"either `horovodrun -np {np} ...` without srun, or `srun -n {np} --mpi=pmix ...` "
            "without horovodrun"
        )


def allocated_hosts(environment: Mapping[str, str]) -> list[tuple[str, int]] | None:
    """The allocation's (host, tasks) pairs; None outside Slurm or if it is this machine only."""
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not nodes or environment.get("SLURM_STEP_ID", _INTERACTIVE_STEP) != _INTERACTIVE_STEP:
        return None  # the one task of a step has only this node
    names = expand_nodelist(nodes)
    if len(names) == 1 and {"SLURM_PROCID", "SLURMD_NODENAME"} & environment.keys():
        return None
    counts = expand_counts(environment.get("SLURM_TASKS_PER_NODE") or "1")
    counts += counts[-1:] * (len(names) - len(counts))
    return list(zip(names, counts, strict=False))


def hide_tasks(environment: dict[str, str]) -> None:
    """Take Slurm's task layout out of `environment`, so that mpirun starts ranks right here.

    Among what goes is SLURM_JOBID: Open MPI asks Slurm for hosts when it sees it. The same number
    stays as SLURM_JOB_ID for the user's program.
    """
    for name in [n for n in environment if n.startswith("SLURM_")]:
        if not name.startswith(_HARMLESS):
            del environment[name]
