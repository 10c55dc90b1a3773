"""The solution checks: what does a converted script do on each of two ranks?

    from hvdlab.check import check
    verdict = check("06", "my_fashion_mnist.py")
    verdict.done, verdict.points, verdict["broadcast"].seen

The script runs for a few steps under observation, and each step of the conversion is judged by
what the ranks did, never by how it is written.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from .course import (
    ALIASES,
    ALL,
    LABS,
    CheckError,
    Script,
    arguments_for,
    find,
    options_of,
    script_of,
)
from .judge import judge
from .run import TIME_S, Recording, observe
from .verdict import StepVerdict, Verdict

__all__ = ["ALL", "LABS", "CheckError", "Recording", "Script", "StepVerdict", "Verdict", "check"]


def check(lab: str, script: str | os.PathLike[str] | None = None, limit: float = TIME_S) -> Verdict:
    """Run a student's script on two ranks and judge it; takes half a minute.

    Args:
        lab: "05", "06" or "07".
        script: the file; by default the lab's own script in this folder.
        limit: seconds after which the script is stopped.

    Raises CheckError where there is nothing to check: no such lab, no such file, no Python.
    """
    path = Path(script) if script is not None else find(lab)
    known = script_of(lab, path)
    options = options_of(path.read_text())
    known = replace(known, names_rate=bool(options & set(ALIASES["--base-lr"])))
    recording = observe(path, known.phases(), limit)
    if _are_refused(recording):
        recording = observe(path, arguments_for(known.phases(), options), limit)
    return judge(known, path.name, recording)


def _are_refused(recording: Recording) -> bool:
    """Whether the script ended at once, as argparse does at arguments that it does not know."""
    ends = [event["error"] for events in recording.events for event in events if "error" in event]
    return bool(ends) and all(error == "SystemExit: 2" for error in ends)
