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
from functools import partial
from pathlib import Path
from typing import Any

from ..warm import Nest
from .aliases import arguments_for, has
from .course import (
    ALL,
    LABS,
    LIMIT,
    CheckError,
    Script,
    find,
    options_named,
    outside,
    python_of,
    script_of,
    source_of,
)
from .evidence import NO_INIT, read
from .judge import judge
from .run import TIME_S, Recording, observe
from .runtime_facts import GPUS
from .verdict import StepVerdict, Verdict

__all__ = ["ALL", "LABS", "CheckError", "Recording", "Script", "StepVerdict", "Verdict"]
__all__ += ["advise", "check"]

BEGUN = ("step", "weights")  # what tells that a script has begun to train
STEPS = 8  # of an epoch of Keras' fit, where a script from outside could take hours


def check(
    lab: str,
    script: str | os.PathLike[str] | None = None,
    limit: float = TIME_S,
    nest: Nest | None = None,
) -> Verdict:
    """Run a student's script on two ranks and judge it; takes half a minute.

    Args:
        lab: "05", "06" or "07".
        script: the file; by default what the lab's notebook has begun, or the lab's own script.
        limit: seconds after which the script is stopped.
        nest: see `hvdlab.check.run.warm`.

    Raises CheckError where there is nothing to check: no such lab, no such file, no Python.
    """
    path = Path(script) if script is not None else find(lab)
    return judge(*record(script_of(lab, path), path, limit, nest))


def advise(path: Path, limit: float = TIME_S) -> Verdict:
    """Run a script from outside of the course and say which steps it has, lacks, has wrong.

    MNIST and Fashion-MNIST from keras.datasets and torchvision are the check's own small slice.

    Raises CheckError if it can't be read or is no Python.
    """
    python_of(path)
    return judge(*record(outside(path), path, limit))


def record(
    script: Script, path: Path, limit: float = TIME_S, nest: Nest | None = None
) -> tuple[Script, str, Recording]:
    """Run a version of the script; what `judge` takes.

    One that has not grown from the course's also runs on one rank, without a GPU: there is no other
    measure.
    """
    options = options_named(path)
    steps = STEPS if script.outside else None
    if not script.is_version and not _may_resume(path, options):
        script = script.without("resume")
    known = next((each for each in ALL if each.name == script.name), ALL[0])
    ways: dict[str, Any] = {"limit": limit, "steps": steps, "nest": nest}
    ways["reference"] = partial(observe, known.solution, known.phases(), limit, nest=nest)
    whole = script.phases()
    fewer, nothing = [[*phase, *LIMIT] for phase in whole], [[] for _ in whole]
    # The arguments, and what the script is told where it asks a parser or for variables.
    tries = [
        (arguments_for(whole, options), whole), (nothing, whole),
        (arguments_for(fewer, options), fewer), (nothing, nothing),
    ]  # fmt: skip
    for phases, variables in [(whole, whole), tries[0]] if script.is_version else tries:
        ways["variables"] = variables
        recording = observe(path, phases, **ways)
        if not _are_refused(recording):
            break
    if script.is_version:
        return script, path.name, recording
    first, second = (read(recording)[0].phase(number) for number in (0, 1))
    script = replace(script, names_rate=first.option("--base-lr") is not None)
    taken = {argument.partition("=")[0] for argument in second.arguments}
    if not has(taken, "--resume", "--checkpoint") and not _goes_on(recording):
        script = script.without("resume")
    before = judge(script, path.name, recording)
    if not before.ended:
        for gpus in (0, GPUS):  # it may need one
            alone = observe(path, phases, **ways, np=1, gpus=gpus)
            if _needs_no_gpu(alone.events[0]):
                break
        recording = replace(recording, alone=alone.events[0])
    # It may set them where there is no GPU.
    if "threads" in before.failing() and not recording.stopped:
        shared = observe(path, phases[:1], **ways, gpus=0)
        recording = replace(recording, without_gpus=shared.events)
    return script, path.name, recording


def _may_resume(path: Path, options: set[str]) -> bool:
    """Whether a script has an option for it, or may ask a parser or its environment for one."""
    text = source_of(path)[0]
    asks = any(each in text for each in ("environ", "getenv", "argparse", "click", "typer", "absl"))
    return has(options, "--resume", "--log-dir") or (asks and "resume" in text.lower())


def _needs_no_gpu(events: list[dict[str, Any]]) -> bool:
    """Whether the script trained without one, or could not for want of init() alone."""
    steps = any(event["event"] in BEGUN for event in events)
    return steps or any((event.get("error") or "").startswith(NO_INIT) for event in events)


def _goes_on(recording: Recording) -> bool:
    """Whether the second run began with the weights that rank 0 had at the end of the first; it may
    have, where there was none."""
    first, second = (read(recording)[0].phase(number).steps for number in (0, 1))
    return not (first and second) or first[-1].after == second[0].before


def _are_refused(recording: Recording) -> bool:
    """Whether a rank's script failed before it took a step, as at arguments that it does not know.

    Not by what the runtime says: these are no arguments.
    """
    ends = [event["error"] for events in recording.events for event in events if "error" in event]
    steps = any(event["event"] in BEGUN for each in recording.events for event in each)
    ours = (NO_INIT, "Horovod")
    return any(ends) and not steps and not any((error or "").startswith(ours) for error in ends)
