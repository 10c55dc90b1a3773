"""The judge's view of the training: the gradients and the data.

The measure of all of it: N ranks do what one process does with N times as many images a step.
"""

from __future__ import annotations

import numpy as np

from hvdlite.request import ADASUM

from .evidence import SMALL, Case, Finding, Phase, Step, Unseen, is_known, parted
from .inferred import shares_of_step
from .run import RANKS
from .verdict import DONE, OPEN, WRONG


def is_adasum(case: Case) -> bool:
    """Whether gradients were combined by it."""
    calls = (call for phase in case.phases(0) for call in phase.calls)
    return any(call["op"] == ADASUM and call["elements"] > SMALL for call in calls)


def near(value: float, expected: float) -> bool:
    """Whether it is that number, but for 2 %."""
    return abs(value - expected) <= 0.02 * expected


def optimizer(case: Case) -> Finding:
    """Does each step use the mean of the ranks' gradients, the same on all of them?"""
    case.steps(0)
    pairs = [pair for phase in (0, 1) for pair in case.pairs(phase)]
    if is_adasum(case) and all(one.before == other.before for one, other in case.pairs(0)[1:]):
        return DONE, "after each step both ranks have the same weights, by Adasum"
    sent = [sum(s.reduced >= 0.9 * s.elements for s in mine) for mine in zip(*pairs, strict=True)]
    equal = sum(one.is_as(other) for one, other in pairs)
    if equal == len(pairs) and min(sent) == len(pairs):
        told = f"of {len(pairs)} steps, {equal} used the same gradients on both ranks"
        wrong = _size(case) or _too_early(case) or _uneven(case)
        return (WRONG, wrong) if wrong else (DONE, told)
    if not any(sent):
        return OPEN, f"in {len(pairs)} steps no rank sent its gradients to the other"
    return WRONG, f"gradients were averaged before {min(sent)} of {len(pairs)} steps" + (
        "; they were averaged, but the step used others" if min(sent) == len(pairs) else ""
    )


def _size(case: Case) -> str:
    """What is wrong with the size of the update, or with what it costs; empty if nothing is."""
    steps = [step for phase in case.phases(0) for step in phase.steps]
    if without := min(step.without for step in steps):
        return f"{without} parameters got no gradient, on no rank and in no step"
    often = min(step.reduced / max(1, step.elements * max(1, step.batches)) for step in steps)
    if often > 1.8:
        return f"all gradients go from rank to rank {often:.0f} times in each step"
    times = times_the_mean(case)
    base, top = case.base_lr(0), max(step.lr for step in steps)
    if times == RANKS and base is not None and near(top, base * RANKS):
        return (
            f"the gradients of the ranks are added up, and the rate is multiplied as well: each "
            f"step is {RANKS} times too large"
        )
    if times == 1 / RANKS:
        return f"the gradients are divided by {RANKS} twice: each step is {RANKS} times too small"
    return ""


def _too_early(case: Case) -> str:
    """What the runtime has said of steps that come before the last of their backward passes."""
    lines = (line for logged in case.recording.logged for line in logged)
    return next((line for line in lines if "backward passes: each call reduces" in line), "")


def times_the_mean(case: Case) -> float | None:
    """How many times the mean of the ranks' gradients a step uses: N, 1 or 1/N.

    None where it is something else or changes from step to step, as with clipping. A loss that the
    script divides by the number of ranks counts as the whole one.
    """
    pairs = case.pairs(0)
    if any(step.moved for pair in pairs for step in pair):
        return None
    for given in ("own", "sent"):
        found = [sum(parts) for pair in pairs if (parts := shares_of_step(pair, given))]
        if len(found) < max(2, 0.8 * len(pairs)):
            continue
        for times in (RANKS, 1, 1 / RANKS):
            if all(abs(each - times) <= 0.03 * times for each in found):
                return times * share_of_the_loss([step for pair in pairs for step in pair])
    return None


def _uneven(case: Case) -> str:
    """Where ranks count differently in what is used; empty if they don't in most of the steps."""
    found = [parts for parts in map(shares_of_step, case.pairs(0)) if parts]
    apart = [parts for parts in found if max(parts) - min(parts) > 0.05 * sum(parts)]
    if len(apart) < max(3, 0.5 * len(found)):
        return ""
    words = " and ".join(f"{part / sum(apart[0]):.0%}" for part in apart[0])
    return (
        "gradients were changed on each rank before they were averaged: those of rank 0 and rank 1 "
        f"make up {words} of what was used in a step, and in most steps not half of it each"
    )


def share_of_the_loss(steps: list[Step]) -> float:
    """1/N where the loss is the Nth part of the cross entropy, N where it is N times that.

    The losses of several batches before a step are taken for parts of one.
    """
    known = [step for step in steps if _has_losses(step)]
    shares = [step.batches * step.loss / step.expected for step in known]
    for share in (1 / RANKS, RANKS):
        if shares and all(abs(each - share) <= 0.05 * share for each in shares):
            return share
    return 1.0


def shard(case: Case) -> Finding:
    """Are the parts of an epoch disjoint, do they cover the set, does the order change?"""
    ranks, phases = case.ranks, case.phases(0)
    epochs = [parted(phase) for phase in phases]
    whole = max(rank.images for rank in ranks)
    whole = min(whole, int(phases[0].option("--limit") or whole))
    if not all(mine and mine[0] for mine in epochs) or not whole:
        raise Unseen("no training images were seen")
    if not case.script.is_version and all(_is_drawn(phase, whole) for phase in phases):
        return _draws(case)
    first = [mine[0] for mine in epochs]
    if sum(is_known(number) for mine in first for number in mine) < 0.5 * sum(map(len, first)):
        raise Unseen("the images are changed before the model gets them, and can't be told apart")
    common = set(first[0]) & set(first[1])
    total, distinct = sum(map(len, first)), len(set(first[0]) | set(first[1]))
    told = f"of {whole} images rank 0 read {len(first[0])} in epoch 1, rank 1 {len(first[1])}"
    told += f", {len(common)} of them also read by rank 0"
    if wrong := _other_labels(case):
        return WRONG, f"{told}; {wrong}"
    complete = all(len(mine) > 1 for mine in epochs)
    idle = [
        sum(not step.ids and not step.again for step in phase.epochs[0].steps) for phase in phases
    ]
    if any(idle):
        return WRONG, f"{told}; {max(idle)} steps of epoch 1 got no images"
    if total > 1.1 * whole:
        return OPEN if len(first[0]) >= whole else WRONG, told
    if wrong := _how_long(case, whole):
        return WRONG, f"{told}; {wrong}"
    draws = any(fit.get("steps_per_epoch") for rank in ranks for fit in rank.fits)
    shared = len(common) > 0.02 * whole + RANKS
    if draws and first[0] != first[1] and not (shared and complete and _begin_anew(epochs)):
        every = {number for phase in phases for number in _stream(phase)}
        if complete and len(every) < 0.65 * whole:  # two epochs of draws have 86 % of them
            return WRONG, f"{told}; in all of the training only {len(every)} different ones"
        if complete and total < 0.9 * whole:
            return WRONG, f"{told}: random draws, {total} in an epoch of all ranks together"
        return DONE, f"{told}: random draws, in 1/{RANKS} of the steps"
    if shared:
        return WRONG, told
    if distinct < 0.9 * whole and complete:
        return WRONG, f"{told}; together {distinct} different ones"
    if not complete:
        raise Unseen(f"{told}; no second epoch was seen")
    batches = [
        [{frozenset(s.ids) for s in each.steps} for each in phase.epochs if len(each.steps) > 1]
        for phase in phases
    ]
    shuffled = any(fit.get("is_shuffled", True) for rank in ranks for fit in rank.fits)
    # What Keras shuffles by itself it may shuffle in the same way each time, where seeds are set.
    if not shuffled and any(mine[1][: len(mine[0])] == mine[0] for mine in epochs):
        return WRONG, f"{told}; and epoch 2 had them in the same order as epoch 1"
    if not shuffled and any(len(mine) > 1 and mine[0] == mine[1] for mine in batches):
        return WRONG, f"{told}; and epoch 2 had the same batches as epoch 1"
    return DONE, f"{told}; epoch 2 had another order"


def _begin_anew(epochs: list[list[list[int | str]]]) -> bool:
    """Whether each epoch is a part of a new order of all images: it has none of them twice, while
    the next one, which would have the others, has many of them again."""
    return all(
        len(set(one)) == len(one) and len(set(one) & set(two)) > 0.25 * len(two)
        for one, two, *_ in epochs
    )


def _how_long(case: Case, whole: int) -> str:
    """What is wrong with how many images the ranks read in all of the training; empty if nothing.

    One process would read so many epochs of all images, or what it did read.
    """
    phases, alone = case.phases(0), len(_stream(case.alone.phase(0)))
    asked = phases[0].option("--epochs")
    wanted = alone or (int(asked) * whole if asked else 0)
    read = sum(len(_stream(phase)) for phase in phases)
    well = all(phase.ended and not phase.error for phase in phases)
    if wanted and (read > 1.3 * wanted or (read < 0.7 * wanted and well)):
        return f"one process would read {wanted} images in this training, all ranks read {read}"
    return ""


def _other_labels(case: Case) -> str:
    """Which rank trains with labels that are not those of its images; empty if none.

    The loss of the other one is, in every step, the same multiple of what follows from the labels.
    """
    shares = [
        [step.batches * step.loss / step.expected for step in phase.steps if _has_losses(step)]
        for phase in case.phases(0)
    ]
    off = [sum(abs(x / np.median(mine) - 1) > 0.003 for x in mine) for mine in shares]
    few = min(map(len, shares)) < RANKS + 2
    odd = [rank for rank, mine in enumerate(shares) if off[rank] > 0.5 * len(mine)]
    if few or len(odd) != 1 or any(off[rank] for rank in range(RANKS) if rank not in odd):
        return ""
    return f"the labels that rank {odd[0]} trains with are not those of its images"


def _has_losses(step: Step) -> bool:
    return bool(step.batches and step.loss and step.expected)


def _stream(phase: Phase) -> list[int | str]:
    """All training images, in the order in which they were read."""
    return [number for step in phase.steps for number in step.ids]


def _is_drawn(phase: Phase, whole: int) -> bool:
    """Whether images come again long before the set is through."""
    first = _stream(phase)[: whole // 2]
    return len(first) - len(set(first)) > 0.05 * whole


def _draws(case: Case) -> Finding:
    """Random draws without end have no epochs: the number of steps alone tells the share."""
    streams = [_stream(phase) for phase in case.phases(0)]
    if streams[0][:SMALL] == streams[1][:SMALL]:
        return WRONG, "both ranks draw the same images, in the same order"
    told = "each rank draws from all images, in an order of its own"
    if case.alone.phases:
        wrong = _how_long(case, 0)
        return (WRONG, f"{told}; {wrong}") if wrong else (DONE, f"{told}, for its share of steps")
    raise Unseen(f"{told}; whether more ranks take fewer steps each can't be seen")
