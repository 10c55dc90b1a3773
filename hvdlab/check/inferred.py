"""Steps that no optimizer of a framework tells of.

They are inferred from the weights before each batch, and their rates from the gradients.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .evidence import Event, Step


def without_weights(events: list[Event]) -> list[Event]:
    """Weights matter only in runs in which no optimizer of a framework tells of its steps."""
    numbers = list(itertools.accumulate(event["event"] == "phase" for event in events))
    pairs = list(zip(numbers, events, strict=True))
    told = {number for number, event in pairs if event["event"] == "step"}
    return [e for number, e in pairs if e["event"] != "weights" or number not in told]


def step_between(before: Event, after: Event) -> Event:
    """The step of a script that has an optimizer of its own: the weights before and after it."""
    moved = np.subtract(after["sketch"], before["sketch"])
    facts = {"before": before["digest"], "after": after["digest"], "elements": after["elements"]}
    facts["own"] = after["own"]
    return facts | {"lr": 0.0, "grads": "", "used": (-moved).tolist(), "moved": moved.tolist()}


def infer_rates(pairs: list[tuple[Step, ...]]) -> None:
    """Where steps are the ranks' gradients times a number, that is their rate; with momentum, a
    part of the step before is in them as well.

    Of some it is not known, such as the last before metrics are sent: it is that of the one before.
    """
    if not all(step.moved for pair in pairs for step in pair):
        return
    plain = [sum(shares_of_step(pair, "sent") or shares_of_step(pair)) for pair in pairs]
    beside = [_beside(*both) for both in zip([None, *pairs], pairs, strict=False)]
    enough = [each for each in (plain, beside) if sum(map(bool, each)) > 0.7 * len(each)]
    if not enough:
        return
    found = enough[0]
    rate = next(each for each in found if each)
    for pair, known in zip(pairs, found, strict=True):
        rate = known or rate
        for step in pair:
            step.lr = rate


def _beside(before: tuple[Step, ...] | None, pair: tuple[Step, ...]) -> float:
    """By what the mean of the gradients was multiplied in a step, beside a part of the one before;
    0 where it was something else."""
    for which in ("sent", "own") if before else ():
        sketches = [getattr(step, which) for step in pair]
        if None not in sketches:
            parts, used = np.transpose([np.mean(sketches, 0), before[0].used]), pair[0].used
            rate, rest = np.linalg.lstsq(parts, used, rcond=1e-6)[0]
            off = np.linalg.norm(parts @ [rate, rest] - used)
            if rate > 0 and 0 < rest < 2 and off <= 0.01 * np.linalg.norm(used):
                return float(rate)
    return 0.0


def shares_of_step(pair: tuple[Step, ...], given: str = "own") -> list[float]:
    """By what each rank's own gradient was multiplied to get their sum that the step used.

    Empty where that is not known, or where the step used something else. `given` says what is taken
    for its own: the gradient of the last backward pass, or what it "sent" by itself.
    """
    sketches = [getattr(step, given) for step in pair]
    if None in sketches or pair[0].used is None:
        return []
    own, used = np.transpose(sketches), np.array(pair[0].used)
    parts = np.linalg.lstsq(own, used, rcond=1e-6)[0]
    off = np.linalg.norm(own @ parts - used)
    return parts.tolist() if parts.sum() > 0 and off <= 0.05 * np.linalg.norm(used) else []
