"""The judge's view of what is reported: is it the mean over all images, whoever saw them?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from operator import mul

from .evidence import SMALL, Case, Epoch, Event, Finding, Phase, Unseen
from .run import RANKS
from .verdict import DONE, OPEN, WRONG

# A number with decimals; seconds are of no metric.
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?(?![\de]|\s*s(?:ec\w*)?\b)")
UNWEIGHTED = "mean of means, whose parts differ in size"


def metrics(case: Case) -> Finding:
    """Is what rank 0 reports, by print or in a file, the mean over the ranks, not its own value?"""
    phases, recording = case.phases(0), case.recording
    count = min(len(phase.epochs) for phase in phases)
    well = all(phase.ended and not phase.error for phase in phases)
    if not count or not (recording.texts or all(phase.ended for phase in phases)):
        raise Unseen("the run ended before an epoch was reported")
    for one, other in zip(*(rank.decisions for rank in case.ranks), strict=False):
        values = [each["value"] for each in (one, other)]
        if None not in values and not _close(*values):
            return WRONG, (
                f"{one['by']} decides by {one['monitor']}: that was {values[0]:.4f} on rank 0 and "
                f"{values[1]:.4f} on rank 1"
            )
    are_shared, mean = all(any(_small(phase)) for phase in phases), ""
    printed = {"": [*recording.printed[0], *recording.logged[0]]}
    for file, lines in (printed | recording.texts).items():
        for epochs in values_of(phases, count, lines).values():
            said = {what: text for there in reversed(epochs) for what, text in there.items()}
            # Of the numbers in a file one may be a metric's by chance, but not in each epoch; and a
            # file of many numbers is a diary of steps.
            always = set.intersection(*map(set, epochs)) if count > 1 and len(lines) < 20 else ()
            if "mean" not in said and (always if file else said):
                text = said.get("own") or next(iter(said.values()))
                where = f" in {file}" if file else ""
                return (OPEN if "own" in said and not are_shared else WRONG), f"{text}{where}"
            mean = mean or said.get("mean", "")
    if mean:
        return DONE, mean
    if not well:
        raise Unseen("the run ended before an epoch was reported")
    if not are_shared:
        return OPEN, "no number of the size of a metric went from one rank to the other"
    raise Unseen("small numbers were averaged; which of the reported ones they are can't be seen")


def values_of(phases: list[Phase], count: int, lines: list[str]) -> dict[str, list[dict[str, str]]]:
    """What the numbers in these lines are of each metric in each epoch, and in words.

    A number counts as a value if it is one in all of the decimals that were printed.
    """
    words = _NUMBER.findall("\n".join(lines))
    # Half of the last decimal; of more decimals than a float32 has, what it is off.
    numbers = [
        (float(x), max(0.51 * 10.0 ** -len(x.partition(".")[2]), 1e-6 * max(1, abs(float(x)))))
        for x in words
    ]

    def is_there(value: float, apart: float) -> bool:
        """As such or in per cent, with decimals enough to tell it from one so far apart."""
        return any(
            abs(number - times * value) <= off < times * apart / 4
            for number, off in numbers for times in (1, 100)
        )  # fmt: skip

    found: dict[str, list[dict[str, str]]] = {"loss": [], "accuracy": []}
    for number in range(count):
        epochs = [phase.epochs[number] for phase in phases]
        for title in found:
            found[title].append({})
        for name in ("loss", "loss_of_images", "whole_loss", "accuracy"):
            own = [getattr(epoch, name) for epoch in epochs]
            if None in own or abs(own[0] - own[1]) < 0.002:
                continue
            mean, title = _mean(name, own, epochs), name.replace("whole_", "").partition("_")[0]
            values = {"mean": mean, "own": own[0], "times": RANKS * mean, "part": mean / RANKS}
            if abs((plain := sum(own) / RANKS) - mean) > 0.002:
                values[UNWEIGHTED] = plain
            text = f"epoch {number + 1}: {title} was {own[0]:.4f} on rank 0 and {own[1]:.4f} on "
            text += "rank 1; rank 0 reported "
            apart = abs(own[0] - own[1])
            found[title][number] |= {
                what: f"{text}{x:.4f}" + (f", the {what}" if what == UNWEIGHTED else "")
                for what, x in values.items() if is_there(x, apart)
            }  # fmt: skip
    return found


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 2e-4 + 2e-4 * abs(other)


def _mean(name: str, own: list[float], epochs: list[Epoch]) -> float:
    """The mean of the ranks' values, each for as many images as it is of."""
    weights = [each.seen if name == "accuracy" else len(each.ids) for each in epochs]
    if not all(weights):
        weights = [1] * RANKS
    return sum(map(mul, weights, own)) / sum(weights)


def _kin(call: Event) -> tuple[str, int]:
    """The same for the calls of one place, which may be numbered."""
    return re.sub(r"\d+", "", call["name"]), call["elements"]


def _small(phase: Phase) -> Iterator[bool]:
    often = Counter(map(_kin, phase.calls))
    for call in phase.calls:
        in_every_step = call["training"] or often[_kin(call)] >= max(2, len(phase.steps))
        shared = call["kind"] != "broadcast" and call["steps"] and not in_every_step
        yield bool(shared and call["elements"] <= SMALL and call["values"])
