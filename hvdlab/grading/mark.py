"""`nbgrader autograde` for a whole class, some submissions at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from ..ending import end
from ..several import several
from . import CourseError

LIMIT = 3600.0  # seconds for a submission: nbgrader has its own limit for a notebook, of 1800


def mark(
    course: Path, lab: str, force: bool = False, limit: float = LIMIT
) -> Iterator[tuple[str, str]]:
    """Mark what students have submitted of a lab; each student, and what went wrong, if anything.

    Each submission has an nbgrader for itself. An interrupt ends those that are running: what was
    marked before stays, and nothing else is left.

    Args:
        course: the course's folder.
        lab: such as "06" or "06_pytorch".
        force: mark again what is marked already.
        limit: seconds after which an nbgrader is ended: one whose kernel dies while it starts may
            wait for it for ever.

    Raises:
        CourseError: there is no course, or nothing was submitted.
    """
    if not (course / "nbgrader_config.py").is_file():
        raise CourseError(f"{course.resolve()} is no course's folder; hvdlab nbgrader makes one")
    submissions = sorted(path for path in course.glob(f"submitted/*/{lab.zfill(2)}*/"))
    if not submissions:
        raise CourseError(f"no submission of lab {lab} in {course.resolve() / 'submitted'}")
    running: set[subprocess.Popen] = set()
    ended = threading.Event()

    def one(submission: Path) -> str:
        student, options = submission.parent.name, ["--force"] if force else []
        process = subprocess.Popen(
            [sys.executable, "-m", "nbgrader", "autograde", submission.name, f"--student={student}",
             *options],
            cwd=course, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,  # an interrupt comes from here, and once
        )  # fmt: skip
        running.add(process)
        if ended.is_set():
            process.send_signal(signal.SIGINT)
        try:
            told = process.communicate(timeout=limit)[1].strip()
        except subprocess.TimeoutExpired:
            end(process)
            process.communicate()
            return f"nbgrader was still running after {limit:g} s; mark it again, with --force"
        finally:
            running.remove(process)
        return _cause(told, process.returncode) if process.returncode else ""

    try:
        for submission, problem in several(one, submissions, "marking", "submission"):
            yield submission.parent.name, problem
    finally:
        ended.set()
        for process in list(running):
            end(process, patience=60)


def _cause(told: str, code: int) -> str:
    """What went wrong: the last line of the traceback that nbgrader shows among its own words."""
    lines = [line for line in told.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("[AutogradeApp")] or lines
    return causes[-1].strip() if causes else f"nbgrader ended with exit code {code}"
