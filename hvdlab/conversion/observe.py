"""Run the student's script on the notebook's ranks, and say what each of them did."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import horovod

from .. import engines
from .script import Script

LIMIT = 60.0  # seconds: it ends a run in which a rank waits for ever


@dataclass
class Seen:
    """What one rank did in a run of the script.

    Attributes:
        rank, size: as hvd says after the script's init(); None where it made none.
        printed: all that the rank printed.
        files: names of what it wrote into its own folder.
        threads: CPU threads that the framework uses.
        rates: the learning rate of each training step.
        before, after: digests of the weights before and after each training step.
        update: what the first step changed in the last layer's bias.
        epochs: for each epoch the numbers of the images that it trained on, in their order.
        own: loss and accuracy (None where not known) of each epoch on this rank's images alone.
        reported: loss and accuracy of each epoch as the script reports them.
    """

    rank: int | None = None
    size: int | None = None
    printed: str = ""
    files: list[str] = field(default_factory=list)
    threads: int = 0
    rates: list[float] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    epochs: list[list[int]] = field(default_factory=list)
    own: list[tuple[float | None, float | None]] = field(default_factory=list)
    reported: list[tuple[float, float]] = field(default_factory=list)


def observe(
    script: Script, *arguments: str, keep: bool = False, limit: float = LIMIT
) -> list[Seen]:
    """Run the script on the running engines; what each rank did, in rank order.

    A script for TensorFlow 1 runs on two ranks of its own.

    Each rank gets a --log-dir of its own, as if it were on another machine, and weights of its
    own to begin with, as if no seed were set. It uses 256 images in steps of 32, on the CPU.

    Args:
        arguments: more options for the script.
        keep: leave the ranks' folders as the run before has left them.
        limit: seconds after which the run is ended on all ranks.

    Raises:
        RanksFailed: a rank raised an error, or waited for one that did not come.
    """
    root = script.path.resolve().parent / "ranks"
    if not keep:
        shutil.rmtree(root, ignore_errors=True)
    options = ["--limit", "256", "--batch-size", "32", "--no-cuda", *arguments]
    if script.framework == "tensorflow1":  # graphs and eager execution don't mix in a process
        arguments = (str(script.path.resolve()), script.framework, options, str(root))
        return horovod.run(run_here, arguments, np=2)
    ranks = engines.current()
    code = (
        "from hvdlab.conversion.observe import run_here as _run\n"
        f"_seen = None\n_seen = _run({str(script.path.resolve())!r}, {script.framework!r}, "
        f"{options!r}, {str(root)!r})"
    )
    try:
        ranks.run(code, limit=limit)
        seen = ranks.pull("_seen")
    except engines.RanksFailed:
        ranks.restart()  # whatever the others were waiting for
        raise
    if None in seen:
        raise engines.RanksFailed(f"the run was not over after {limit:g} s")
    return seen


def run_here(path: str, framework: str, options: Sequence[str], root: str) -> Seen:
    """On a rank: run the script's main(), and note what it does."""
    import sys

    from mpi4py import MPI

    from . import notes

    comm = MPI.COMM_WORLD
    folder = Path(root, f"rank-{comm.rank}")
    folder.mkdir(parents=True, exist_ok=True)
    seen, printed, arguments = Seen(), io.StringIO(), sys.argv
    notes.fresh(framework)
    sys.argv = [path, *options, "--log-dir", str(folder)]
    source = Path(path).read_text(encoding="utf-8")
    names = {"__name__": "script", "__file__": path}
    try:
        with redirect_stdout(printed), notes.taken(framework, seen, comm.rank) as prepare:
            exec(compile(source, path, "exec"), names)
            prepare(names)
            names["main"]()
    finally:
        sys.argv = arguments
    hvd = notes.hvd(framework)
    if hvd.is_initialized():
        seen.rank, seen.size = hvd.rank(), hvd.size()
        hvd.shutdown()
    seen.printed = printed.getvalue()
    seen.files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return seen


def together(parts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many different images the ranks read, and how many more than one of them read."""
    sets = [set(part) for part in parts]
    every = set().union(*sets)
    return len(every), sum(sum(image in one for one in sets) > 1 for image in every)


def chosen_gpus(script: Script) -> list[tuple[int, int]]:
    """Which GPU the lines of step 2 would take: for each of 4 processes on 2 hosts with 2 GPUs.

    Nothing runs on a GPU: the lines are run alone, with the answers that they would get there.
    Returns (local rank, number of the GPU) for ranks 0 to 3.
    """
    from . import notes

    return [
        (rank % 2, notes.gpu_of(script.framework, script.piece("2"), rank)) for rank in range(4)
    ]
