"""The variables by which launchers tell a process its rank and the number of processes.

The one table of them, for the runtime as for `horovodrun`; it imports nothing of either.
"""

from collections.abc import Mapping
from typing import NamedTuple

# By this variable horovodrun names a pipe to the ranks of its own machine (see `ends.py`).
REPORT = "HVDLITE_REPORT"
# By this one the folder of a host in an elastic job, in memory (see `elastic/restart.py`).
ELASTIC = "HVDLITE_ELASTIC"


class Launcher(NamedTuple):
    """A launcher, and the variable in which it says how many processes it has started.

    It sets those in `also`, too: asked for where others might use the first one's name.
    """

    name: str
    size: str
    uses_mpi: bool = True
    also: tuple[str, ...] = ()


LAUNCHERS = (
    Launcher("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE"),
    # Of the job step: a batch script has the job's number but is itself a single process. Before
    # PMI_SIZE, which srun --mpi=pmi2 sets, too.
    Launcher("srun", "SLURM_STEP_NUM_TASKS"),
    Launcher("mpiexec of MPICH or Intel MPI", "PMI_SIZE"),
    Launcher("mpiexec of MPICH or Intel MPI", "MPI_LOCALNRANKS"),
    Launcher("torchrun (or accelerate launch, or deepspeed)", "WORLD_SIZE", uses_mpi=False,
             also=("RANK", "LOCAL_RANK", "MASTER_ADDR")),
)  # fmt: skip
# The surest first: mpirun within a job step of srun leaves Slurm's variable as it is.
MPI_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
RANK_VARIABLES = (*MPI_RANK_VARIABLES, "SLURM_PROCID", "HOROVOD_RANK")


def launchers_of_many(environment: Mapping[str, str]) -> list[tuple[Launcher, int]]:
    """The launchers that say this process is one of several, and of how many."""
    counts = [(launcher, environment.get(launcher.size, "")) for launcher in LAUNCHERS]
    return [
        (launcher, int(count))
        for launcher, count in counts
        if count.isdigit() and int(count) > 1 and environment.keys() >= set(launcher.also)
    ]


def rank_of(environment: Mapping[str, str]) -> int:
    """This process's rank by its launcher's word; 0 without one."""
    numbers = (environment.get(name, "") for name in RANK_VARIABLES)
    return int(next(filter(str.isdigit, numbers), "0"))
