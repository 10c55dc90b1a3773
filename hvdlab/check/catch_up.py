"""`hvdlab catch-up`: bring a student's script to a step, and keep what is right in it.

The difference between the plain script and its solution is taken apart by the steps that the
solution's comments name. What is missing goes into the student's script by a three-way merge
with the plain script as the common ancestor, so that changes of the student's own stay.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import tempfile
from pathlib import Path

from .course import STEPS, CheckError, Script

_NAMED = re.compile(r"\b[Ss]tep (\d+)")


def halfway(script: Script, steps: set[int]) -> str:
    """The plain script with only these steps of the conversion done.

    Steps lean on each other: what a step needs of another one comes with it.
    """
    plain = script.original.read_text().splitlines(keepends=True)
    solution = script.solution.read_text().splitlines(keepends=True)
    wanted = steps | ({1} if steps else set())
    result: list[str] = []
    matcher = difflib.SequenceMatcher(None, plain, solution, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            result += plain[a:b]
            continue
        named = _steps_of(solution, c, d) or _steps_of(solution, c, d, near=True)
        result += solution[c:d] if not named or named & wanted else plain[a:b]
    return "".join(result)


def _steps_of(lines: list[str], first: int, last: int, near: bool = False) -> set[int]:
    """The steps that a stretch of the solution belongs to."""
    text = "".join(lines[first - 6 if near and first > 6 else first : last])
    found = [int(number) for number in _NAMED.findall(text)]
    if near:
        return set(found[-1:])
    return set(found)


def catch_up(script: Script, mine: str, missing: set[int]) -> str:
    """The student's text with the missing steps put in; where both changed, the step wins.

    Raises CheckError if the result would be no valid Python.
    """
    plain = script.original.read_text()
    merged = _merge(mine, plain, halfway(script, missing))
    try:
        compile(merged, "merged", "exec")
    except SyntaxError as error:
        raise CheckError(
            f"your script and the steps don't fit together (line {error.lineno}); start from "
            f"scripts/{script.name} again: hvdlab catch-up LAB --step N --from-start"
        ) from None
    return merged


def _merge(mine: str, base: str, theirs: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, text in (("mine", mine), ("base", base), ("theirs", theirs)):
            Path(folder, name).write_text(text)
            names.append(str(Path(folder, name)))
        try:
            done = subprocess.run(
                ["git", "merge-file", "-p", "--theirs", *names],
                capture_output=True, text=True, timeout=60, cwd=folder,
            )  # fmt: skip
        except FileNotFoundError:
            raise CheckError("git is needed to merge your script with the steps") from None
        if done.returncode:
            raise CheckError(f"git could not merge: {done.stderr.strip()}")
        return done.stdout


def difference(before: str, after: str, name: str) -> str:
    """The change as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, f"{name} (new)"
    )
    return "".join(lines)


def up_to(number: int) -> set[int]:
    """The steps from 1 to `number`. Raises CheckError for a number that is no step."""
    if number not in {step.number for step in STEPS}:
        raise CheckError(f"there are steps 1 to {len(STEPS)}, and no step {number}")
    return {step.number for step in STEPS if step.number <= number}
