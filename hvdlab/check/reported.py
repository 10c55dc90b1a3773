"""The judge's view of what is reported: is it the mean over all images, whoever saw them?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from operator import mul

from .evidence import SMALL, Case, Epoch, Event, Finding, Phase, Unseen
from .run import RANKS
from .training import share_of_the_loss
from .verdict import DONE, OPEN, WRONG


def metrics(case: Case) -> Finding:
    """Is what rank 0 reports the mean over the ranks, and not its own value?"""
    phases = case.phases(0)
    count = min(len(phase.epochs) for phase in phases)
    reports = case.recording.reports[0]
    if not count or (not reports and not all(phase.ended for phase in phases)):
        raise Unseen("the run ended before an epoch was reported")
    for one, other in zip(*(rank.decisions for rank in case.ranks), strict=False):
        values = [each["value"] for each in (one, other)]
        if None not in values and not _close(*values):
            return WRONG, (
                f"{one['by']} decides by {one['monitor']}: that was {values[0]:.4f} on rank 0 and "
                f"{values[1]:.4f} on rank 1"
            )
    if not reports and not case.script.is_version:
        return _printed(case, count)
    if not reports:
        raise Unseen("rank 0 wrote no epochs.jsonl with its metrics")
    if not any(phase.epochs[0].ids for phase in phases):
        raise Unseen("no training images were seen, and so not where an epoch ends")
    told: dict[str, str] = {}
    for number, report in enumerate(reports[:count]):
        for name in ("loss", "accuracy"):
            value = report.get(name)
            if not isinstance(value, int | float):
                continue
            own = _own_values(phases, number, name, value)
            if None in own or _close(*own):
                continue
            text = (
                f"epoch {number + 1}: {name} was {own[0]:.4f} on rank 0 and {own[1]:.4f} "
                f"on rank 1; {value:.4f} was reported"
            )
            if not _close(value, _mean(name, own, [phase.epochs[number] for phase in phases])):
                is_own = _close(value, own[0])
                return (OPEN if is_own and not _any_small(phases) else WRONG), text
            told.setdefault(name, text)
    if "loss" not in told and not _any_small(phases):
        return OPEN, "no loss and no accuracy went from one rank to the other"
    if not told:
        return OPEN, "the metrics that went between the ranks are not those reported"
    return DONE, next(iter(told.values()))


def _printed(case: Case, count: int) -> Finding:
    """The metrics among the numbers that rank 0 printed; without the name of any, by their values.

    A number counts as a value if it is one in all of the decimals that were printed.
    """
    phases = case.phases(0)
    words = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", "\n".join(case.recording.printed[0]))
    numbers = [(float(word), 0.51 * 10.0 ** -len(word.partition(".")[2])) for word in words]

    def is_there(value: float) -> bool:
        values = (value, 100 * value)
        return any(abs(number - each) <= off for number, off in numbers for each in values)

    found: list[tuple[str, str]] = []
    for number in range(count):
        epochs = [phase.epochs[number] for phase in phases]
        for name in ("loss", "loss_of_images", "whole_loss", "accuracy"):
            own = [getattr(epoch, name) for epoch in epochs]
            if None in own or abs(own[0] - own[1]) < 0.002:
                continue
            mean = _mean(name, own, epochs)
            values = {"mean": mean, "own": own[0], "times": RANKS * mean, "part": mean / RANKS}
            text = f"epoch {number + 1}: {name.partition('_')[0]} was {own[0]:.4f} on rank 0 and "
            text += f"{own[1]:.4f} on rank 1; rank 0 printed "
            found += [(what, f"{text}{value:.4f}") for what, value in values.items()
                      if is_there(value)]  # fmt: skip
    told = dict(reversed(found))
    if "mean" in told:
        return DONE, told["mean"]
    if "own" in told:
        return OPEN if not _any_small(phases) else WRONG, told["own"]
    if found:
        return WRONG, found[0][1]
    if not all(phase.ended and not phase.error for phase in phases):
        raise Unseen("the run ended before an epoch was reported")
    if not _any_small(phases):
        return OPEN, "no number of the size of a metric went from one rank to the other"
    raise Unseen("small numbers were averaged; which of the printed ones they are can't be seen")


def _own_values(phases: list[Phase], number: int, name: str, value: float) -> list[float | None]:
    """The metric of each rank in an epoch; what it sent where that could not be seen."""
    epochs = [phase.epochs[number] for phase in phases]
    own = [getattr(epoch, name) for epoch in epochs]
    whole = [epoch.whole_loss for epoch in epochs]
    share = share_of_the_loss([step for phase in phases for step in phase.steps])
    if name == "loss" and None not in own + whole and share < 1:
        own = whole  # backward() had a part of it only
    return _sent(phases, number, value) if None in own else own


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 2e-4 + 2e-4 * abs(other)


def _mean(name: str, own: list[float], epochs: list[Epoch]) -> float:
    """The mean of the ranks' values, each for as many images as it is of."""
    weights = [each.seen if name == "accuracy" else len(each.ids) for each in epochs]
    if not all(weights):
        weights = [1] * RANKS
    return sum(map(mul, weights, own)) / sum(weights)


def _any_small(phases: list[Phase]) -> bool:
    """Whether every rank gave a number to the others that is no gradient and no state."""
    return all(any(_small(phase)) for phase in phases)


def _kin(call: Event) -> tuple[str, int]:
    """The same for the calls of one place, which may be numbered."""
    return re.sub(r"\d+", "", call["name"]), call["elements"]


def _small(phase: Phase) -> Iterator[bool]:
    often = Counter(map(_kin, phase.calls))
    for call in phase.calls:
        in_every_step = call["training"] or often[_kin(call)] >= max(2, len(phase.steps))
        shared = call["kind"] != "broadcast" and call["steps"] and not in_every_step
        yield bool(shared and call["elements"] <= SMALL and call["values"])


def _sent(phases: list[Phase], number: int, value: float) -> list[float | None]:
    """What the ranks sent in the small call of this epoch whose mean was reported, or whose own
    value was: the local values of a metric that could not be seen otherwise."""
    candidates = [
        [
            (x, place)
            for call in phase.calls
            if call["elements"] <= SMALL and number < call["epoch"] <= number + 2
            for place, x in enumerate(call["values"])
        ]
        for phase in phases
    ]
    for mine in candidates[0]:
        for other in candidates[1]:
            if mine[1] == other[1] and _close((mine[0] + other[0]) / RANKS, value):
                return [mine[0], other[0]]
    near = [mine[0] for mine in candidates[0] if _close(mine[0], value)]
    others = [other[0] for other in candidates[1]]
    return [near[0], others[0]] if near and others else [None, None]
