"""What two ranks do in the student's script, and whether its steps are done: as `hvdlab check`."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from ..check.course import ALL
from ..check.course import Script as Known
from ..check.evidence import Rank, read
from ..check.judge import judge as verdict_on
from ..check.run import IMPORTS, Recording, warm
from ..check.run import observe as run
from ..check.verdict import DONE
from ..exercise import Check
from ..warm import Nest
from .script import Script

LIMIT = 60.0  # seconds: it ends a run in which a rank loops for ever


def observe(script: Script, *arguments: str) -> list[Rank]:
    """Run the script on two ranks, for two epochs; what each of them did, in rank order.

    Each rank begins with weights of its own, as if no seed were set, and has a folder of its own,
    as if it were on another machine. It uses 256 images in steps of 16, and no GPU.
    A script that is as it was when it ran last is not run again.

    Args:
        arguments: more options for the script.
    """
    return read(_run(script, arguments)[1])


def judge(check: Check, script: Script, *steps: str, arguments: Sequence[str] = ()) -> None:
    """State for each of these steps, such as "broadcast", whether it is done, and what was seen."""
    known, recording = _run(script, arguments)
    verdict = verdict_on(known, script.path.name, recording)
    for key in steps:
        step = verdict[key]
        check.that(step.result == DONE, f"{step.title}: {step.seen}", verdict.ended, step.look)
    is_sent = "broadcast" in steps and verdict["broadcast"].result == DONE
    if is_sent and script.framework == "torch" and _resumes_later(script):
        calls = read(recording)[1].phase(0).calls
        check.that(
            any("optimizer_state" in call["name"] for call in calls),
            "the optimizer's state goes to all ranks, too",
            "Nothing shows yet: it is empty at the start. After a resume only rank 0 has momentum.",
            "`hvd.broadcast_optimizer_state`",
        )


def _resumes_later(script: Script) -> bool:
    """Whether the step is still to come that lets the script go on from its checkpoint."""
    return bool(script.steps) and not ("8" in script.steps and script.written("8"))


def _run(script: Script, arguments: Sequence[str]) -> tuple[Known, Recording]:
    known = next(each for each in ALL if each.name == script.name)
    if _resumes_later(script):
        known = replace(known, lacks=(*known.lacks, "resume"))
    return known, _record(known, script.path, script.path.read_text("utf-8"), tuple(arguments))


@lru_cache(maxsize=2)
def _record(known: Known, path: Path, text: str, arguments: tuple[str, ...]) -> Recording:
    phases = [[*phase, *arguments] for phase in known.phases()]
    return run(path, phases, LIMIT, nest=_nest(IMPORTS[known.framework]))


@cache
def _nest(modules: tuple[str, ...]) -> Nest:
    """A process that has imported the framework; it ends with the notebook."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(warm(*modules))
