"""`hvdlab slurm`: the command line."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..cli_errors import errors
from .cluster import Cluster, SlurmError, own_address, pmix_cure, version

app = typer.Typer(
    help="A real Slurm on this machine, its bad luck, and sbatch files.", no_args_is_help=True
)

Node = Annotated[str, typer.Argument(help="Such as node2.")]
Job = Annotated[str, typer.Argument(help="The number that sbatch printed.")]


_errors = partial(
    errors, SlurmError, OSError, interrupted="interrupted; `hvdlab slurm down` clears up"
)


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="Nodes; each is this machine.")] = 2,
    cpus: Annotated[int, typer.Option(help="CPUs that each node claims to have.")] = 8,
    gpus: Annotated[int, typer.Option(help="GPUs that each node claims to have.")] = 4,
) -> None:
    """Start Slurm here: slurmctld, a slurmd for each node, and MUNGE, all of their own."""
    with _errors():
        cluster = Cluster()
        started = cluster.up(nodes, cpus, gpus)
        number = ".".join(f"{part:02}" for part in version())
        state = "is up" if started else "was up already"
        print(f"Slurm {number} {state} with {len(cluster.nodes())} nodes, in {cluster.folder}")
        if cure := pmix_cure():
            print(f"`srun --mpi=pmix` needs one package more:\n  {cure}")
        if not (address := own_address()).startswith("127."):
            print(f"It listens on {address}; others can do nothing without its key.")
        print('Let this shell talk to it:\n  eval "$(hvdlab slurm env)"')


@app.command()
def down() -> None:
    """End it with all its jobs, and remove its files; also after a crash."""
    with _errors():
        print("Slurm is down." if Cluster().down() else "No cluster was up.")


@app.command()
def status() -> None:
    """Show the nodes and the jobs; exit code 1 if a part is missing."""
    with _errors():
        cluster = Cluster()
        cluster.require()
        lost = cluster.missing()
        if "munged" in lost or "slurmctld" in lost:
            raise SlurmError(
                f"{' and '.join(lost)} ended; start afresh: hvdlab slurm down; hvdlab slurm up"
            )
        print(cluster.ask("sinfo", "-N", "-p", "main", "-o", "%8N %12T %5c %10G %E").rstrip())
        print(cluster.ask("squeue", "-o", "%8i %12P %20j %12T %10M %6D %R").rstrip())
        for node in lost:
            print(f"{node} has no slurmd; bring it back: hvdlab slurm resume {node}")
        if lost:
            raise typer.Exit(1)


@app.command()
def env() -> None:
    """Print the lines that let a shell talk to the cluster: eval "$(hvdlab slurm env)"."""
    with _errors():
        cluster = Cluster()
        cluster.require()
        for name, value in cluster.environment().items():
            print(f"export {name}={shlex.quote(value)}")


@app.command()
def fail(node: Node) -> None:
    """Lose a node: its slurmd and the ranks on it end without a word."""
    from . import mishaps

    with _errors():
        mishaps.fail(Cluster(), node)
        print(f"{node} is lost; bring it back: hvdlab slurm resume {node}")


@app.command()
def resume(node: Node) -> None:
    """Bring a lost node back."""
    from . import mishaps

    with _errors():
        mishaps.resume(Cluster(), node)
        print(f"{node} is back.")


@app.command()
def preempt(job: Job) -> None:
    """Let an urgent job push this one from its nodes, back into the queue."""
    from . import mishaps

    with _errors():
        grace = mishaps.preempt(Cluster(), job)
        print(
            f"An urgent job asked for the nodes of job {job}. Slurm sends the job a warning, and "
            f"takes the nodes {grace} s later (GraceTime) if the job has not left them itself."
        )


@app.command()
def timeout(job: Job) -> None:
    """Let a running job reach its time limit; takes up to about two minutes."""
    from . import mishaps

    with _errors():
        print("Slurm counts in minutes and looks every half minute.", flush=True)
        state = mishaps.time_out(Cluster(), job, lambda line: print(line, flush=True))
        print(f"job {job} has reached its time limit; it is {state.lower() or 'over'}")


@app.command(context_settings={"ignore_unknown_options": True})
def script(
    program: Annotated[Path, typer.Argument(help="The training script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the training script.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 2,
    gpus: Annotated[int, typer.Option(help="GPUs a node, one rank each; 0: CPUs only.")] = 0,
    tasks: Annotated[
        int | None, typer.Option(help="Ranks a node, where there are no GPUs.")
    ] = None,
    cpus: Annotated[int, typer.Option(help="CPUs for each rank.")] = 1,
    time: Annotated[int, typer.Option(help="Time limit in minutes.")] = 30,
    launcher: Annotated[str, typer.Option(help="srun, mpirun or horovodrun.")] = "srun",
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Go on from the checkpoint after a time limit.")
    ] = False,
) -> None:
    """Print an sbatch file that runs a training script."""
    from .script import Request, sbatch_file

    with _errors():
        request = Request(
            [str(program), *(arguments or [])], nodes, gpus, tasks, cpus, time, launcher, requeue
        )
        print(sbatch_file(request), end="")
