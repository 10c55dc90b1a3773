"""`%load_ext hvdlab`: what the notebooks of the course use beyond plain Python.

    %%horovodrun -np 2 [--limit SECONDS] [horovodrun's options] [-- the program's arguments]
        runs the cell as a program on 2 ranks; its output appears while it runs
    %%px
        runs the cell on the engines that hvdlab.engines has started, see there
    %%step N
        writes the cell to the place of conversion step N in the script, see hvdlab.conversion

It also lets `!horovodrun` find the commands of this Python's environment, activated or not.
"""

from __future__ import annotations

import codecs
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .brief import BriefError, BriefInterrupt

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

LIMIT = 300.0  # seconds that a cell's program may run
SHOWN = 1 << 16  # characters of output that a cell shows, so that notebooks stay small
LAST = 1 << 12  # characters of its end that are shown all the same
ENDLESS = 1 << 24  # characters after which a program is ended


class CellFailed(BriefError):
    """The program of a cell has failed. It has said above why."""


def load(shell: InteractiveShell) -> None:
    """`%load_ext hvdlab`: the magics, and the environment of `!` commands. Twice is fine."""
    load_ipython_extension(shell)
    _prepare()


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, each of which prepares the rest when it is used.

    Every kernel of an environment does so at its start (tools/jupyter/ipython_kernel_config.py),
    so that `%%px` is known after a restart, before the notebook's first cell has run again.
    """
    from IPython.core.error import UsageError

    def run_cell(line: str, cell: str) -> None:
        _prepare()
        try:
            horovodrun(line, cell)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def px(line: str, cell: str | None = None) -> None:
        _prepare()
        from .engines.magic import px as run_on_ranks  # ipyparallel takes a second to import

        run_on_ranks(line, cell)

    def step(line: str, cell: str) -> None:
        _prepare()
        from .conversion.script import magic as write_step

        try:
            write_step(line, cell)
        except (ValueError, RuntimeError) as error:
            raise UsageError(str(error)) from None

    shell.register_magic_function(step, "cell", "step")
    shell.register_magic_function(run_cell, "cell", "horovodrun")
    shell.register_magic_function(px, "line_cell", "px")


@cache
def _prepare() -> None:
    prepare_environment()
    _leave_a_single_gpu()


def prepare_environment() -> None:
    """PATH finds this environment's commands; Open MPI lets root and many ranks pass."""
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if here not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, [here, path]))
    if os.geteuid() == 0:
        os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("JUPYTER_COLUMNS", "84")  # what rich's tables may take of a page


def _leave_a_single_gpu() -> None:
    """With one GPU the second process of a cell would look for another one, and fail."""
    if shutil.which("nvidia-smi") is None:
        return
    from .compare.machine import gpus, on_the_cpu

    if len(gpus()) == 1:
        on_the_cpu()
        print(
            "There is one GPU here, and each process wants one of its own: the programs of this "
            "notebook run on the CPU."
        )


def horovodrun(line: str, cell: str) -> None:
    """Run the text of a cell as a program on several ranks, with its output in the cell.

    Raises ValueError for a line that can't be meant, CellFailed where the program fails or passes
    a limit, KeyboardInterrupt after an interrupt. No process of it is left in any case.
    """
    options, arguments, limit = _read(line)
    with tempfile.TemporaryDirectory(prefix="hvdlab-cell-") as folder:
        program = Path(folder, "cell.py")
        program.write_text(cell, encoding="utf-8")
        command = [sys.executable, "-m", "hvdrun", *options]
        command += [sys.executable, str(program), *arguments]
        paths = [os.getcwd(), *filter(None, sys.path)]
        _run(command, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, limit)


def _read(line: str) -> tuple[list[str], list[str], float]:
    words = shlex.split(line)
    arguments: list[str] = []
    if "--" in words:
        arguments = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    limit = LIMIT
    if "--limit" in words:
        place = words.index("--limit")
        try:
            limit = float(words[place + 1])
        except (IndexError, ValueError):
            raise ValueError("--limit needs a number of seconds, as in --limit 60") from None
        del words[place : place + 2]
    if not any(word in ("-np", "-n", "--num-proc") for word in words):
        raise ValueError("say on how many ranks: %%horovodrun -np 2")
    return words, arguments, limit


def _run(command: list[str], env: dict[str, str], limit: float) -> None:
    from .ending import end  # psutil takes a moment to import

    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,  # the interrupt button reaches the kernel alone, which passes it on
    )
    try:
        told = _show(job, time.monotonic() + limit)
    except KeyboardInterrupt:
        end(job)
        raise BriefInterrupt("the program was ended on all ranks") from None
    finally:
        end(job, signal.SIGTERM)
        job.stdout.close()
    if told == "time":
        raise CellFailed(
            f"the program ran for {limit:g} s and was ended; `%%horovodrun --limit SECONDS` allows "
            "more. Does a rank wait for one that never comes?"
        )
    if told == "output":
        raise CellFailed(f"the program printed more than {ENDLESS >> 20} MB, and was ended")
    if job.returncode:
        raise CellFailed(f"the program ended with exit code {job.returncode}; see above")


def _show(job: subprocess.Popen, deadline: float) -> str:
    """Print what the job prints until it ends; "time" or "output" tell which limit it passed.

    Of a lot of output its beginning and its end are shown.
    """
    import select

    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    printed, end = 0, ""
    why = ""
    while not why:
        if time.monotonic() > deadline:
            why = "time"
        elif not select.select([job.stdout], [], [], 0.1)[0]:
            if job.poll() is not None:
                break
        elif data := os.read(job.stdout.fileno(), 1 << 16):
            text = decode(data)
            now = text[: max(0, SHOWN - printed)]
            print(now, end="", flush=True)
            end = (end + text[len(now) :])[-LAST:]
            printed += len(text)
            why = "output" if printed > ENDLESS else ""
        else:  # it has closed its output, and may still run
            try:
                job.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                why = "time"
            break
    if end:
        left_out = printed - SHOWN - len(end)
        print(f"\n... {left_out:,} characters are left out here ...\n{end}" if left_out else end)
    return why
