"""The commands for a class and its room, a part of `hvdlab`: see cli.py."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from .cli_errors import errors, fail

app = typer.Typer()


@app.command()
def handout(
    folder: Annotated[Path, typer.Argument(help="Made if need be; files that are there stay.")],
    all_: Annotated[
        bool,
        typer.Option("--all", help="Also the solutions, the labs' sources, the trainer's pages."),
    ] = False,
) -> None:
    """Write what students get, and no answers, into a folder: labs, scripts, sbatch files, pages.

    It needs no clone of the repository: the installed package brings everything along.
    """
    from .handout import write

    with errors(ValueError, OSError):
        written, different = write(folder, everything=all_)
    notebooks = sum(path.suffix == ".ipynb" and "solution" not in path.parts for path in written)
    print(f"{folder}: {len(written)} files written, {notebooks} of them notebooks to work through")
    if different:
        count = len(different)
        print(f"Files of yours that stay as they are: {count}, such as {different[0]}")
    print(f"Begin with: cd {folder} && jupyter lab labs/README.md")


@app.command()
def reset(
    lab: Annotated[str, typer.Argument(help="Such as 06.")],
) -> None:
    """Set one lab back to what was handed out, in this folder's course; your work is kept."""
    from .handout import reset as set_back

    with errors(ValueError, OSError):
        path, kept = set_back(lab, Path.cwd())
    print(f"{path} is as it was handed out")
    if kept:
        print(f"What you had there is in {kept}")
        print("In JupyterLab close the lab's tab, shut its kernel down, and open it again.")


@app.command()
def rehearse(
    labs: Annotated[
        list[str] | None,
        typer.Argument(help="half-day, day, two-days, or labs such as 00 06; day by default."),
    ] = None,
    students: Annotated[int, typer.Option(help="So many at once on this machine.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the page and the notebooks.")] = Path(
        "rehearsal"
    ),
) -> None:
    """For the trainer: run the labs, solved and unsolved, as the class will do tomorrow.

    Says what each takes (waiting, memory, processes, ports, disk), what was fetched from
    elsewhere, and what fails. Exit code 1 if there is something to do.
    """
    from .builder import BuildError
    from .rehearse.command import run

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the labs as Ctrl-C does
    with errors(BuildError, OSError, interrupted="interrupted"):
        ready = run(labs or ["day"], students, out)
    if not ready:
        raise typer.Exit(1)


@app.command()
def bundle(
    file: Annotated[Path, typer.Argument(help="What to write.")] = Path("hvdlite.pyz"),
    without: Annotated[
        list[str] | None,
        typer.Option(help="An extra to leave out: torch, tensorflow, lightning. Repeatable."),
    ] = None,
) -> None:
    """For the trainer: the course in one file, which installs it on machines without a network.

    In it are the packages of this environment, the data, labs, scripts and pages. Students run
    it: python3 hvdlite.pyz hvdlite-course
    """
    from .bundle.make import EXTRAS, BundleError, make
    from .data.catalog import DataError

    left_out = set(without or [])
    if unknown := left_out - set(EXTRAS):
        raise fail(f"there is no extra {', '.join(sorted(unknown))} among {', '.join(EXTRAS)}", 2)
    if "tensorflow" in left_out:
        left_out.add("tensorflow-cpu")
    with errors(BundleError, DataError, OSError, interrupted="interrupted"):
        size = make(file, tuple(extra for extra in EXTRAS if extra not in left_out))
    print(f"{file}: {size / 1e9:.2f} GB")
    print(f"On each machine: python3 {file.name} hvdlite-course")
    print(f"To hand it out in the room: hvdlab serve-bundle {file} --host 0.0.0.0")


@app.command("serve-bundle")
def serve_bundle(
    file: Annotated[Path, typer.Argument(help="What `hvdlab bundle` has written.")] = Path(
        "hvdlite.pyz"
    ),
    host: Annotated[str, typer.Option(help="0.0.0.0 lets your network reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where it listens.")] = 8766,
) -> None:
    """For the trainer: hand the bundle out in the room, so that nobody needs the Internet."""
    from .bundle.serve import run

    try:
        run(file, host, port)
    except KeyboardInterrupt:
        pass
    except FileNotFoundError:
        raise fail(f"there is no {file}; make it: hvdlab bundle {file}") from None
    except OSError as error:
        raise fail(f"can't serve at {host}:{port}: {error.strerror or error}; try --port") from None


@app.command()
def board(
    host: Annotated[str, typer.Option(help="0.0.0.0 lets your network reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where it listens.")] = 8765,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where no port is open: students write into this shared folder."),
    ] = None,
    silence: Annotated[
        float, typer.Option(help="Minutes after which a student counts as silent.")
    ] = 10,
    new_tokens: Annotated[
        bool, typer.Option("--new-tokens", help="Who joined before must join again.")
    ] = False,
) -> None:
    """For the trainer: a live page of who has passed which exercise, and who is stuck.

    It says what students type to join. Nothing is sent to it before.
    """
    from .board.server import run

    try:
        run(host, port, folder, silence, new_tokens)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise fail(f"no board at {host}:{port}: {error.strerror or error}; try --port") from None


@app.command()
def join(
    address: Annotated[str | None, typer.Argument(help="What your trainer's board shows.")] = None,
    name: Annotated[str, typer.Option(help="As it stands on the board.")] = "",
    leave: Annotated[bool, typer.Option("--leave", help="Send nothing more.")] = False,
) -> None:
    """Let the trainer's board know how your exercises go: name, lab, exercise, verdict.

    Of your code nothing is sent, and a board that is down disturbs nothing.
    """
    from .board import send

    with errors(ValueError, OSError):
        if leave:
            send.leave()
            print("nothing is sent to a board any more")
        elif address is None:
            raise fail("name the board's address, or --leave", 2)
        else:
            called, answer = send.join(address, name)
            print(f"your checks go to the board as {called}" + (f"; {answer}" if answer else ""))


@app.command()
def nbgrader(
    folder: Annotated[Path, typer.Argument(help="The course's folder; made if need be.")],
    numbers: Annotated[
        list[str] | None, typer.Argument(help="Labs, such as 02 03; all by default.")
    ] = None,
    labs: Annotated[
        Path | None, typer.Option(help="A folder of labs; the course's own by default.")
    ] = None,
    students: Annotated[
        Path | None, typer.Option(help="CSV: id, and perhaps first_name, last_name, email.")
    ] = None,
    exchange: Annotated[
        Path | None, typer.Option(help="nbgrader's exchange; FOLDER/exchange by default.")
    ] = None,
    name: Annotated[str, typer.Option(help="The course's id.")] = "hvdlite",
) -> None:
    """Make a course of nbgrader from the labs, to hand them out, collect and mark them.

    What is in the folder already stays. See docs/instructor.md for nbgrader's own commands.
    """
    from .builder import BuildError
    from .grading import CourseError, make_course
    from .handout import source

    with errors(BuildError, CourseError, OSError):
        make_course(folder, labs or source() / "labs", numbers or [], students, exchange, name)


@app.command()
def autograde(
    lab: Annotated[str, typer.Argument(help="Such as 06.")],
    course: Annotated[Path, typer.Option(help="The folder of `hvdlab nbgrader`.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Mark all of them again.")] = False,
) -> None:
    """Mark what was submitted of a lab, as `nbgrader autograde` does, several at a time.

    Exit code 1 if a submission could not be marked.
    """
    from .grading import CourseError
    from .grading.mark import mark

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends all as Ctrl-C does
    with errors(CourseError, OSError, interrupted="interrupted; what is marked stays marked"):
        marked = dict(mark(course, lab, force))
    problems = {student: problem for student, problem in marked.items() if problem}
    for student, problem in problems.items():
        print(f"not marked: {student}: {problem}")
    print(f"marked: {len(marked) - len(problems)} of {len(marked)}")
    if problems:
        raise typer.Exit(1)
