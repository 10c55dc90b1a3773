"""Ask a program something: with a time limit, and nothing of it left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from ..ending import end

LIMIT = 120.0  # seconds for one question; importing TensorFlow from a cold network disk takes long
OK, ABSENT, PROBLEM = "ok", "absent", "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report: the state is "ok", "absent" (fine) or "problem"; `fix` for those."""

    what: str
    state: str
    detail: str
    fix: str = ""


class NoAnswer(Exception):
    """A question ended without a useful answer; the text says how."""


def ask(command: list[str], limit: float = LIMIT, **env: str) -> str:
    """What a command prints. Its processes are gone afterwards, however it ended.

    Raises NoAnswer if it takes too long, fails or isn't there.
    """
    try:
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **env},
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{command[0]}: {error.strerror}") from None
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {limit:g} s") from None
    finally:
        end(job, signal.SIGTERM, 5)  # a launcher ends its ranks
        for stream in (job.stdout, job.stderr):
            stream.close()
    if job.returncode:
        told = [line for line in (err + out).splitlines() if line.strip()]
        raise NoAnswer(told[-1].strip() if told else f"ended with exit code {job.returncode}")
    return out.strip()


def ask_python(code: str, limit: float = LIMIT) -> str:
    """The last line that a piece of Python prints, run by this Python; raises NoAnswer."""
    lines = ask([sys.executable, "-c", code], limit, TF_CPP_MIN_LOG_LEVEL="3").splitlines()
    return lines[-1] if lines else ""
