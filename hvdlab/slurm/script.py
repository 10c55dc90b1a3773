"""Write the sbatch file of a training: `hvdlab slurm script`, and most files in slurm/."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from .cluster import SlurmError

LAUNCHERS = ("srun", "mpirun", "horovodrun")

_HEAD = """\
#!/bin/bash
# {title}
#
# Submit it from the folder that holds scripts/, with the Python environment active: the job gets
# the variables of your shell. On a cluster load its MPI module before you submit, and add the
# lines that your site asks for, such as --partition and --account.
#
#   hvdlab data                # first: a compute node may have no Internet
#   sbatch {file}   # words behind the file's name go to the program
#   squeue --me                # is it waiting (PD) or running (R)?
#   scancel JOBID              # end it

#SBATCH --job-name={name}
#SBATCH --output={name}-%j.out       # %j is the job's number
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}      # {why_tasks}
#SBATCH --cpus-per-task={cpus}
"""

_GPUS = """\
# Every rank of a node sees all its GPUs and takes the one of its hvd.local_rank(). Don't ask for
# --gpus-per-task or --gpu-bind: a rank that sees one GPU only would not find number 1.
#SBATCH --gpus-per-node={gpus}
"""

_TIME = """\
#SBATCH --time={time}              # minutes; the job is ended then, finished or not
"""

_REQUEUE = """\
# Slurm may take the nodes away: the time limit, a more urgent job, a broken node. --requeue puts
# the job back into the queue then, and --signal sends USR1 to this script 60 seconds before the
# time limit (Slurm looks only every half minute, so leave it some room). All attempts have one
# job number, and so one folder for checkpoints.
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --open-mode=append     # keep the output of the earlier attempts

# The last checkpoint is on the disk: back into the queue.
trap 'echo "Slurm wants the nodes back: requeued"; scontrol requeue "$SLURM_JOB_ID"' USR1
# Slurm ends this script, too, when it loses a node: say which one.
trap 'sinfo --noheader --list-reasons --format="%N is down: %E"' TERM
"""

_CPU_THREADS = """\
# Ranks share a node's cores. With N threads each of M ranks wants N x M of them, and more threads
# than cores are slower than fewer. Each library has a number of its own:
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK          # PyTorch, NumPy: threads in an operation
export TF_NUM_INTRAOP_THREADS=$SLURM_CPUS_PER_TASK   # TensorFlow: the same
export TF_NUM_INTEROP_THREADS=1                      # TensorFlow: operations side by side
"""

_LAUNCH = {
    "srun": """\
# srun starts one rank for each task. --mpi=pmix tells the ranks about each other; without it each
# would take itself for the only one, which hvdlite refuses. `srun --mpi=list` shows what there is.
# --cpus-per-task has to be repeated: since Slurm 22.05 srun does not take it from sbatch.
srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \\
    {command}""",
    "mpirun": """\
# mpirun learns from Slurm's variables where to start how many ranks. --bind-to none lets a rank
# use all CPUs that it was given: by default each is tied to one core.
mpirun --bind-to none \\
    {command}""",
    "horovodrun": """\
# horovodrun finds the nodes and the ranks on each in Slurm's variables: no -H, no host file.
horovodrun -np "$SLURM_NTASKS" \\
    {command}""",
}


@dataclass
class Request:
    """What an sbatch file is for.

    Args:
        command: the training script and its arguments.
        nodes, gpus, tasks, cpus: nodes; GPUs and ranks a node; CPUs a rank. With GPUs there is
            one rank for each, so `tasks` is for CPU jobs (default 2).
        time: minutes.
        launcher: one of LAUNCHERS.
        requeue: go on from the checkpoint after a time limit, a preemption, a lost node; the
            training script must take --resume and --log-dir.
        file: the name that the comments use; title: the first comment.

    Raises:
        SlurmError: a number or the launcher makes no sense.
    """

    command: list[str]
    nodes: int = 2
    gpus: int = 0
    tasks: int | None = None
    cpus: int = 1
    time: int = 30
    launcher: str = "srun"
    requeue: bool = False
    file: str = "FILE"
    title: str = field(default="")

    def __post_init__(self) -> None:
        if self.launcher not in LAUNCHERS:
            raise SlurmError(f"no launcher {self.launcher!r}; there are {', '.join(LAUNCHERS)}")
        if min(self.nodes, self.cpus, self.time) < 1 or self.gpus < 0:
            raise SlurmError("nodes, CPUs and minutes start at 1, GPUs at 0")
        if self.tasks is not None and self.gpus and self.tasks != self.gpus:
            raise SlurmError("with GPUs there is one rank for each; leave --tasks out")
        self.tasks = self.gpus or self.tasks or 2
        if self.tasks < 1:
            raise SlurmError("a node has one rank or more")


def sbatch_file(request: Request) -> str:
    """The text of the sbatch file."""
    program = Path(request.command[0])
    hardware = f"{request.gpus} GPUs each" if request.gpus else f"{request.tasks} ranks each"
    arguments = list(request.command[1:])
    if request.requeue:
        arguments += ["--log-dir", f"results/{program.stem}-$SLURM_JOB_ID", "--resume"]
    command = " ".join(
        # A variable of Slurm's, such as "$SLURM_JOB_ID", has to stay one.
        f'"{word}"' if re.fullmatch(r"[\w/.-]*\$SLURM_\w+", word) else shlex.quote(word)
        for word in ["python", *request.command[:1], *arguments]
    )
    command += ' "$@"'  # what stands behind the file's name on sbatch's line
    parts = [
        _HEAD.format(
            title=request.title or f"{program} on {_count(request.nodes, 'node')}, {hardware}.",
            file=request.file, name=program.stem, nodes=request.nodes, tasks=request.tasks,
            cpus=request.cpus,
            why_tasks="ranks: one for each GPU" if request.gpus else "ranks",
        )
    ]  # fmt: skip
    parts.append(_GPUS.format(gpus=request.gpus) if request.gpus else "")
    parts.append(_TIME.format(time=request.time) + "\n")
    parts.append(_REQUEUE + "\n" if request.requeue else "")
    parts.append(_CPU_THREADS + "\n")
    parts.append(_LAUNCH[request.launcher].format(command=command))
    # bash acts on a signal only once the program in front has ended, so it waits for one behind.
    parts.append(" &\nwait $!\n" if request.requeue else "\n")
    return "".join(parts)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number > 1 else ''}"


_SOLUTIONS = "scripts/solutions"
_TORCH = f"{_SOLUTIONS}/fashion_mnist_torch.py"
# The files of slurm/ that come from here; `python -m hvdlab.slurm.script slurm` writes them anew.
FILES = {
    "test_horovod.sbatch": Request(
        ["slurm/test_horovod.py"], time=5, title="Does it work at all? Every rank says who it is."
    ),
    "pytorch.sbatch": Request([_TORCH], gpus=2, cpus=2),
    "pytorch_mpirun.sbatch": Request([_TORCH], gpus=2, cpus=2, launcher="mpirun"),
    "pytorch_horovodrun.sbatch": Request([_TORCH], gpus=2, cpus=2, launcher="horovodrun"),
    "pytorch_cpu.sbatch": Request(
        [_TORCH, "--threads", "$SLURM_CPUS_PER_TASK"], cpus=4, title="PyTorch on CPUs only."
    ),
    "pytorch_resume.sbatch": Request(
        [_TORCH], gpus=2, cpus=2, requeue=True,
        title="A training that survives its time limit, preemption, and the loss of a node.",
    ),
    "keras.sbatch": Request([f"{_SOLUTIONS}/fashion_mnist_keras.py"], gpus=2, cpus=2),
    "tensorflow.sbatch": Request([f"{_SOLUTIONS}/mnist_tensorflow.py"], gpus=2, cpus=2),
}  # fmt: skip


def write_files(folder: Path) -> None:
    """Write FILES into `folder`."""
    for name, request in FILES.items():
        request.file = f"slurm/{name}"
        (folder / name).write_text(sbatch_file(request))


if __name__ == "__main__":
    import sys

    write_files(Path(sys.argv[1]))
