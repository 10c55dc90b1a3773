"""Is there such a program? Asked before MPI starts, as MPI would answer once for each rank."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from hvdlite.launch.errors import LaunchError


def check_command(command: list[str], environment: Mapping[str, str]) -> None:
    """Raise LaunchError if the program, or the script that Python shall run, does not exist."""
    program = command[0]
    if not shutil.which(program, path=environment.get("PATH", os.defpath)):
        raise LaunchError(_why_not(program))
    script = _script(command) if os.path.basename(program).startswith("python") else None
    if script is not None and not os.path.exists(script):
        raise LaunchError(f"there is no script {script} (looked in {os.getcwd()})")


def _why_not(program: str) -> str:
    if os.path.isdir(program):
        return f"{program} is a folder, not a program"
    if os.path.isfile(program):
        if program.endswith(".py"):
            return f"{program} can't be executed by itself; write: python {program}"
        return f"{program} is not executable"
    if program in ("python", "python3"):
        return f"there is no {program} on PATH; this installation's is {sys.executable}"
    return f"there is no program {program} on this machine"


def _script(command: list[str]) -> str | None:
    """The file in `python -u FILE ...`; None for -c, -m and standard input."""
    words = iter(command[1:])
    for word in words:
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or (word[1] != "-" and ("c" in word or "m" in word)):
            return None
    return None
