"""The judge's view of the data, the metrics and the rate's course."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from operator import mul

import numpy as np

from .course import Script
from .evidence import SMALL, Epoch, Event, Phase, Rank, Step, parted
from .run import RANKS, Recording
from .verdict import DONE, OPEN, UNSEEN, WRONG

Finding = tuple[str, str]


def data(script: Script, ranks: list[Rank]) -> Finding:
    """Are the parts of an epoch disjoint, do they cover the set, does the order change?"""
    epochs = [parted(rank.phase(0)) for rank in ranks]
    whole = max(rank.images for rank in ranks)
    if not all(mine and mine[0] for mine in epochs) or not whole:
        return UNSEEN, "no training images were seen"
    if script.outside and all(_is_drawn(rank.phase(0), whole) for rank in ranks):
        return _draws(ranks)
    first = [mine[0] for mine in epochs]
    common = set(first[0]) & set(first[1])
    total, distinct = sum(map(len, first)), len(set(first[0]) | set(first[1]))
    told = f"of {whole} images rank 0 read {len(first[0])} in epoch 1, rank 1 {len(first[1])}"
    told += f", {len(common)} of them also read by rank 0"
    complete = all(len(mine) > 1 for mine in epochs)
    epoch = [rank.phase(0).epochs[0].steps for rank in ranks]
    idle = [sum(not step.ids and not step.again for step in steps) for steps in epoch]
    if any(idle):
        return WRONG, f"{told}; {max(idle)} steps of epoch 1 got no images"
    if total > 1.1 * whole:
        return OPEN if len(first[0]) >= whole else WRONG, told
    draws = any(fit.get("steps_per_epoch") for rank in ranks for fit in rank.fits)
    if draws and first[0] != first[1]:
        if total < 0.9 * whole:
            return WRONG, f"{told}: random draws, {total} in an epoch of all ranks together"
        return DONE, f"{told}: random draws, in 1/{RANKS} of the steps"
    if len(common) > 0.02 * whole + RANKS:
        return WRONG, told
    if distinct < 0.9 * whole:
        return (WRONG if complete else UNSEEN), f"{told}; together {distinct} different ones"
    if not complete:
        return UNSEEN, f"{told}; no second epoch was seen"
    again = [mine[1][: len(mine[0])] == mine[0] for mine in epochs]
    if any(again) and not any(rank.fits for rank in ranks):  # Keras shuffles by itself
        return WRONG, f"{told}; and epoch 2 had them in the same order as epoch 1"
    return DONE, f"{told}; epoch 2 had another order"


def times_the_mean(ranks: list[Rank]) -> float | None:
    """How many times the mean of the ranks' gradients a step uses: N, 1 or 1/N.

    None where it is something else or changes from step to step, as with clipping. A loss that the
    script divides by the number of ranks counts as the whole one.
    """
    pairs = list(zip(*(rank.phase(0).steps for rank in ranks), strict=False))
    found = [times for times in map(_times, pairs) if times is not None]
    if len(found) < max(2, 0.8 * len(pairs)):
        return None
    for times in (RANKS, 1, 1 / RANKS):
        if all(abs(each - times) <= 0.03 * times for each in found):
            return times * _share_of_the_loss([step for pair in pairs for step in pair])
    return None


def _times(pair: tuple[Step, ...]) -> float | None:
    if any(step.own is None or step.used is None for step in pair):
        return None
    mean, used = np.mean([step.own for step in pair], axis=0), np.array(pair[0].used)
    length = mean @ mean
    times = float(used @ mean / length) if length > 0 else 0.0
    off = np.linalg.norm(used - times * mean)
    return times if times > 0 and off <= 0.05 * np.linalg.norm(used) else None


def _share_of_the_loss(steps: list[Step]) -> float:
    """1/N where the loss is the Nth part of the cross entropy, N where it is N times that.

    The losses of several batches before a step are taken for parts of one.
    """
    known = [step for step in steps if step.loss and step.expected]
    shares = [step.batches * step.loss / step.expected for step in known]
    for share in (1 / RANKS, RANKS):
        if shares and all(abs(each - share) <= 0.05 * share for each in shares):
            return share
    return 1.0


def adds_up(ranks: list[Rank]) -> bool:
    """Whether the gradients are added up, with a loss for which that is not the mean."""
    return times_the_mean(ranks) == RANKS


def _stream(phase: Phase) -> list[int | str]:
    """All training images, in the order in which they were read."""
    return [number for step in phase.steps for number in step.ids]


def _is_drawn(phase: Phase, whole: int) -> bool:
    """Whether images come again long before the set is through."""
    first = _stream(phase)[: whole // 2]
    return len(first) - len(set(first)) > 0.05 * whole


def _draws(ranks: list[Rank]) -> Finding:
    """Random draws without end have no epochs: the number of steps alone tells the share."""
    streams = [_stream(rank.phase(0)) for rank in ranks]
    if streams[0][:SMALL] == streams[1][:SMALL]:
        return WRONG, "both ranks draw the same images, in the same order"
    told = "each rank draws from all images, in an order of its own"
    return UNSEEN, f"{told}; whether more ranks take fewer steps each can't be seen"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 2e-4 + 2e-4 * abs(other)


def metrics(script: Script, ranks: list[Rank], recording: Recording) -> Finding:
    """Is what rank 0 reports the mean over the ranks, and not its own value?"""
    phases = [rank.phase(0) for rank in ranks]
    count = min(len(phase.epochs) for phase in phases)
    reports = recording.reports[0]
    if not count or (not reports and not all(phase.ended for phase in phases)):
        return UNSEEN, "the run ended before an epoch was reported"
    if not reports and script.outside:
        if _any_small(phases):
            return DONE, "small numbers, such as metrics, were averaged or gathered"
        return OPEN, "no number of the size of a metric went from one rank to the other"
    if not reports:
        return UNSEEN, "rank 0 wrote no epochs.jsonl with its metrics"
    if not any(phase.epochs[0].ids for phase in phases):
        return UNSEEN, "no training images were seen, and so not where an epoch ends"
    proven: set[str] = set()
    told = []
    for number, report in enumerate(reports[:count]):
        for name in ("loss", "accuracy"):
            value = report.get(name)
            if not isinstance(value, int | float):
                continue
            locals_ = [getattr(phase.epochs[number], name) for phase in phases]
            if name == "loss" and None not in locals_:
                whole = [phase.epochs[number].whole_loss for phase in phases]
                if None not in whole and _close(_share_of_the_loss(_steps(phases)), 1 / RANKS):
                    locals_ = whole  # backward() had a part of it only
            if None in locals_:
                locals_ = _sent(phases, number, value)
            if None in locals_ or _close(*locals_):
                continue
            mean = _mean(name, locals_, [phase.epochs[number] for phase in phases])
            text = (
                f"epoch {number + 1}: {name} was {locals_[0]:.4f} on rank 0 and {locals_[1]:.4f} "
                f"on rank 1; {value:.4f} was reported"
            )
            if not _close(value, mean):
                own = _close(value, locals_[0])
                return (OPEN if own and not _any_small(phases) else WRONG), text
            proven.add(name)
            told.append(text)
    missing = {"loss", "accuracy"} - proven
    if "loss" in missing and not _any_small(phases):
        return OPEN, "no loss and no accuracy went from one rank to the other"
    if not proven:
        return OPEN, "the metrics that went between the ranks are not those reported"
    return DONE, told[0]


def _steps(phases: list[Phase]) -> list[Step]:
    return [step for phase in phases for step in phase.steps]


def _mean(name: str, locals_: list[float], epochs: list[Epoch]) -> float:
    """The mean of the ranks' values, each for as many images as it is of."""
    weights = [len(each.ids) if name == "loss" else each.seen for each in epochs]
    if not all(weights):
        weights = [1] * RANKS
    return sum(map(mul, weights, locals_)) / sum(weights)


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


def schedule(script: Script, ranks: list[Rank]) -> Finding:
    """Does the rate grow in the first epoch, stay after it, and fall as in the plain script?"""
    phase = ranks[0].phase(0)
    if script.outside:
        return _warm_up(phase)
    if len(phase.epochs) < 2 or not phase.epochs[1].steps:
        return UNSEEN, "the run ended before the second epoch"
    warm, after = ([step.lr for step in epoch.steps] for epoch in phase.epochs[:2])
    top = max(warm + after)
    told = f"the rate went from {warm[0]:.4g} to {warm[-1]:.4g} in epoch 1, then {after[0]:.4g}"
    if warm[0] > 0.75 * top:
        return OPEN, f"{told}: no warm-up"
    if any(late < early * 0.999 for early, late in zip(warm, warm[1:], strict=False)):
        return WRONG, f"{told}: it does not grow all the time"
    if warm[-1] < 0.75 * top:
        return WRONG, f"{told}: it jumps, and does not grow step by step"
    if after[0] < 0.95 * top:
        return WRONG, f"{told}: the warm-up does not lead to it"
    resumed = ranks[0].phase(1).steps
    if "resume" not in script.lacks and resumed:
        wanted = 0.1 if script.decays else 1.0
        given, own = (script.base_lr(ranks[0].phase(n).arguments) for n in (0, 1))
        top *= own / given  # the second run takes the script's own rate
        told += f"; in epoch 3 of 3 {resumed[0].lr:.4g}"
        if abs(resumed[0].lr / top - wanted) > 0.05 * wanted:
            return WRONG, f"{told}, where the plain script takes {wanted:g} times its rate"
    return DONE, told


def _warm_up(phase: Phase) -> Finding:
    """Does the rate of a script that nothing is known of grow from step to step?"""
    rates = [step.lr for step in phase.steps]
    if len(rates) < 2:
        return UNSEEN, "the run ended before the second step"
    top = rates.index(max(rates))
    told = f"in {len(rates)} steps the rate went from {rates[0]:.4g} to {rates[top]:.4g}"
    if rates[0] <= 0.75 * rates[top] and rates[: top + 1] == sorted(rates[: top + 1]):
        return DONE, told
    if len(phase.epochs) < 2:
        return UNSEEN, f"{told}; the run ended before the second epoch"
    return OPEN, f"{told}: no warm-up"
