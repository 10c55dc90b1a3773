"""Run a program that fails, and show what matters of its output.

    from hvdlab.failing import run
    outcome = run("dies.py", np=2)      # prints; outcome.code is horovodrun's exit code

A traceback of each rank goes through the library down to the line that noticed the trouble. The
frames of the user's own files are shown, those of the libraries are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .ending import end

LIMIT = 120.0  # seconds: it ends a program that would hang
_RANK = re.compile(r"^(\[1,(\d+)\]<(?:stdout|stderr)>:)(.*)$")


@dataclass(frozen=True)
class Outcome:
    """How horovodrun ended: its exit code (None: it was ended after the limit), all its output."""

    code: int | None
    text: str


def run(
    program: str | os.PathLike[str],
    np: int = 2,
    arguments: tuple[str, ...] = (),
    limit: float = LIMIT,
    quiet: bool = False,
    **environment: str,
) -> Outcome:
    """Run a Python program on `np` ranks; print its output without the libraries' frames.

    Args:
        limit: seconds after which the job is ended.
        environment: variables for the job, such as HOROVOD_STALL_CHECK_TIME_SECONDS="2".

    Raises FileNotFoundError if there is no such program.
    """
    path = Path(program).resolve(strict=True)
    command = [sys.executable, "-m", "hvdrun", "-np", str(np), sys.executable, str(path)]
    job = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        text, _ = job.communicate(timeout=limit)
        code: int | None = job.returncode
    except BaseException as error:
        end(job)
        text, _ = job.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        code = None
    if not quiet:
        print(fold(text, path.parent))
        if code is None:
            print(f"--- still running after {limit:g} s, and ended by this notebook")
        else:
            print(f"--- exit code {code}")
    return Outcome(code, text)


def fold(text: str, folder: Path) -> str:
    """The output without the frames of libraries, and with paths below `folder` made short."""
    shown: list[str] = []
    inside: dict[str, bool] = {}
    for line in text.splitlines():
        found = _RANK.match(line)
        lead, rank, rest = (found[1], found[2], found[3]) if found else ("", "", line)
        frame = re.match(r'^  File "([^"]+)"', rest)
        if frame:
            inside[rank] = not frame[1].startswith(f"{folder}{os.sep}")
        elif not rest.startswith("    ") or not rest.strip():
            inside[rank] = False
        if not inside.get(rank) and rest.strip():
            shown.append(lead + rest.replace(f"{folder}{os.sep}", ""))
    return "\n".join(shown)
