"""The solution checks: what does a converted script do on each of two ranks?

    from hvdlab.check import check
    verdict = check("06", "my_fashion_mnist.py")
    verdict.done, verdict.points, verdict["broadcast"].seen

The script runs for a few steps under observation, and each step of the conversion is judged by
what the ranks did, never by how it is written.
"""

from __future__ import annotations

import os
from pathlib import Path

from .course import ALL, LABS, CheckError, Script, arguments_for, find, options_of, script_of
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
    phases = arguments_for(known.phases(), options_of(path.read_text()))
    return judge(known, path.name, observe(path, phases, limit))
