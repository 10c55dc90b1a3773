"""The judge's view of what is reported: is it the mean over all images, whoever saw them?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from operator import mul

from .evidence import SMALL, Case, Epoch, Event, Finding, Phase, Unseen
from .run import RANKS
from .verdict import DONE, OPEN, WRONG

UNWEIGHTED = "mean of means, whose parts differ in size"


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
    same = ""
    for number, report in enumerate(reports[:count]):
        for name in ("loss", "accuracy"):
            value = report.get(name)
            if not isinstance(value, int | float):
                continue
            own = _own_values(phases, number, name, value)
            if None in own or _close(*own):
                same = name if None not in own else same
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
    if not told and same:
        raise Unseen(f"both ranks had the same {same}: whether it is a mean can't be seen")
    if not told:
        return OPEN, "the metrics that went between the ranks are not those reported"
    return DONE, next(iter(told.values()))


def _printed(case: Case, count: int) -> Finding:
    """The metrics among the numbers that rank 0 printed; without the name of any, by their values.

    A number counts as a value if it is one in all of the decimals that were printed.
    """
    phases = case.phases(0)
    told = [*case.recording.printed[0], *case.recording.logged[0]]
    words = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", "\n".join(told))
    numbers = [(float(word), 0.51 * 10.0 ** -len(word.partition(".")[2])) for word in words]

    def is_there(value: float, apart: float) -> bool:
        """As such or in per cent, with decimals enough to tell it from one so far apart."""
        return any(
            abs(number - times * value) <= off < times * apart / 4
            for number, off in numbers for times in (1, 100)
        )  # fmt: skip

    # Of each metric what was printed in each epoch, and in words.
    found: dict[str, list[dict[str, str]]] = {"loss": [], "accuracy": []}
    for number in range(count):
        epochs = [phase.epochs[number] for phase in phases]
        for name in ("loss", "loss_of_images", "whole_loss", "accuracy"):
            own = [getattr(epoch, name) for epoch in epochs]
            if None in own or abs(own[0] - own[1]) < 0.002:
                continue
            mean, title = _mean(name, own, epochs), name.replace("whole_", "").partition("_")[0]
            values = {"mean": mean, "own": own[0], "times": RANKS * mean, "part": mean / RANKS}
            if abs((plain := sum(own) / RANKS) - mean) > 0.002:
                values[UNWEIGHTED] = plain
            text = f"epoch {number + 1}: {title} was {own[0]:.4f} on rank 0 and {own[1]:.4f} on "
            text += "rank 1; rank 0 printed "
            apart = abs(own[0] - own[1])
            there = {
                what: f"{text}{x:.4f}" + (f", the {what}" if what == UNWEIGHTED else "")
                for what, x in values.items() if is_there(x, apart)
            }  # fmt: skip
            if there:
                found[title].append(there)
    for epochs in found.values():
        said = {what: text for there in reversed(epochs) for what, text in there.items()}
        if said and "mean" not in said:
            is_own = "own" in said
            return (OPEN if is_own and not _any_small(phases) else WRONG), (
                said["own"] if is_own else next(iter(said.values()))
            )
    for there in (*found["loss"], *found["accuracy"]):
        if "mean" in there:
            return DONE, there["mean"]
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
    if name == "loss" and None not in own + whole and not 0.7 < sum(own) / sum(whole) < 1.4:
        own = whole  # backward() had a part of it, or a multiple
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
