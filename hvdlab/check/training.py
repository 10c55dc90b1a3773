"""The judge's view of the training: the rate, the gradients and the data.

The measure of all of it: N ranks do what one process does with N times as many images a step.
"""

from __future__ import annotations

import numpy as np

from hvdlite.request import ADASUM

from .course import BATCH
from .evidence import SMALL, Case, Finding, Phase, Step, Unseen, is_known, parted
from .run import RANKS
from .verdict import DONE, OPEN, WRONG


def rate(case: Case) -> Finding:
    """In the run that is given a rate, and in the one that takes the script's own."""
    script, steps = case.script, case.steps(0)
    top = [max(step.lr for step in mine) for mine in steps]
    images = max(len(step.ids) for mine in steps for step in mine)
    base = case.base_lr(0)
    if base is None:
        told = f"the largest rate of {_both_values(top)}"
        raise Unseen(f"{told}; what one process would take is not known")
    factor = RANKS
    told = f"{base:g} for one process, on {RANKS} ranks: the largest rate of {_both_values(top)}"
    batch = max((len(step.ids) for step in case.alone.phase(0).steps), default=BATCH)
    if images and images <= batch // RANKS:
        factor = 1
        told += f", with {images} instead of {batch} images a step"
    elif _is_adasum(case) and all(_near(value, base) for value in top):
        return DONE, f"{told}, and Adasum, which finds the length of a step by itself"
    elif times_the_mean(case) == RANKS and all(_near(value, base) for value in top):
        factor = 1
        told += ", with gradients that are added up and not averaged"
    elif all(_near(value, base * RANKS**0.5) for value in top):
        return DONE, f"{told}: the square root of the number of ranks, which needs a reason"
    if not all(_near(value, base * factor) for value in top):
        if len(epochs := case.ranks[0].phase(0).epochs) < 2 and max(top) < base * factor:
            raise Unseen(f"{told}, but the run ended in epoch {len(epochs)}")
        *_, last = rates = [step.lr for step in steps[0]]
        grows = base * 1.02 < last < base * factor and last == top[0] > rates[0]
        if grows and "schedule" not in script.lacks:
            raise Unseen(f"{told}, and still growing in the last step")
        grown = rates[: rates.index(top[0]) + 1]
        falls = _near(grown[0], base) and grown == sorted(grown) and last < grown[0]
        if len(set(grown)) > 2 and falls and "schedule" not in script.lacks:
            raise Unseen(f"{told}, as it fell before it had grown to its end")
        if not script.names_rate and not case.alone.phases:
            raise Unseen(f"{told}; what one process would take is not known")
        unscaled = factor > 1 and all(_near(value, base) for value in top)
        return OPEN if unscaled else WRONG, told
    if wrong := _of_groups(case, factor):
        return WRONG, f"{told}; {wrong}"
    begun = [step.lr for step in case.ranks[0].phase(0).epochs[0].steps]
    if "schedule" in script.lacks and factor > 1 and all(_near(each, base) for each in begun):
        return WRONG, f"{told}, but that of one process in all of epoch 1"
    return _own_rate(case, factor, told)


def _of_groups(case: Case, factor: int) -> str:
    """Which group of parameters has another rate than N times that of one process; or empty."""
    mine, alone = (
        [max(rates) for rates in zip(*(step.rates for step in rank.phase(0).steps), strict=False)]
        for rank in (case.ranks[0], case.alone)
    )
    for number, (rate, base) in enumerate(zip(mine, alone, strict=False), 1):
        if not _near(rate, base * factor):
            return (
                f"group {number} of {len(mine)} of the optimizer's parameters had {rate:.4g}, "
                f"where it has {base:.4g} on one process"
            )
    return ""


def _own_rate(case: Case, factor: int, told: str) -> Finding:
    """Is the rate that the script has by itself that of the program for one process?"""
    phase = case.ranks[0].phase(1)
    base = case.script.base_lr(phase.arguments)
    if case.script.outside or not phase.steps or base is None or phase.error:
        return DONE, told
    own = max(step.lr for step in phase.steps)
    # One that is not a multiple is a matter of taste.
    twice = [base * factor * RANKS * 0.1**n for n in range(3 if case.script.decays else 1)]
    if not any(_near(own, value) for value in twice):
        return DONE, told
    return WRONG, (
        f"{told}; without --base-lr it was {own:.4g}, where {base:g} is the rate of one process"
    )


def _is_adasum(case: Case) -> bool:
    calls = (call for phase in case.phases(0) for call in phase.calls)
    return any(call["op"] == ADASUM and call["elements"] > SMALL for call in calls)


def _near(value: float, expected: float) -> bool:
    return abs(value - expected) <= 0.02 * expected


def _both_values(values: list[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    if len(set(texts)) == 1:
        return f"both was {texts[0]}"
    return " and ".join(f"rank {rank} was {text}" for rank, text in enumerate(texts))


def optimizer(case: Case) -> Finding:
    """Does each step use the mean of the ranks' gradients, the same on all of them?"""
    case.steps(0)
    pairs = [pair for phase in (0, 1) for pair in case.pairs(phase)]
    if _is_adasum(case) and all(one.before == other.before for one, other in case.pairs(0)[1:]):
        return DONE, "after each step both ranks have the same weights, by Adasum"
    sent = [sum(s.reduced >= 0.9 * s.elements for s in mine) for mine in zip(*pairs, strict=True)]
    equal = sum(one.grads == other.grads for one, other in pairs)
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
    if times == RANKS and base is not None and _near(top, base * RANKS):
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
    for given in ("own", "sent"):
        found = [sum(parts) for pair in pairs if (parts := _parts(pair, given))]
        if len(found) < max(2, 0.8 * len(pairs)):
            continue
        for times in (RANKS, 1, 1 / RANKS):
            if all(abs(each - times) <= 0.03 * times for each in found):
                return times * share_of_the_loss([step for pair in pairs for step in pair])
    return None


def _parts(pair: tuple[Step, ...], given: str = "own") -> list[float]:
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


def _uneven(case: Case) -> str:
    """Where ranks count differently in what is used; empty if they don't in most of the steps."""
    found = [parts for parts in map(_parts, case.pairs(0)) if parts]
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
    if draws and first[0] != first[1]:
        every = {number for phase in phases for number in _stream(phase)}
        if complete and len(every) < 0.65 * whole:  # two epochs of draws have 86 % of them
            return WRONG, f"{told}; in all of the training only {len(every)} different ones"
        if complete and total < 0.9 * whole:
            return WRONG, f"{told}: random draws, {total} in an epoch of all ranks together"
        return DONE, f"{told}: random draws, in 1/{RANKS} of the steps"
    if len(common) > 0.02 * whole + RANKS:
        return WRONG, told
    if distinct < 0.9 * whole and complete:
        return WRONG, f"{told}; together {distinct} different ones"
    if not complete:
        raise Unseen(f"{told}; no second epoch was seen")
    again = [mine[1][: len(mine[0])] == mine[0] for mine in epochs]
    if any(again) and not any(rank.fits for rank in ranks):  # Keras shuffles by itself
        return WRONG, f"{told}; and epoch 2 had them in the same order as epoch 1"
    return DONE, f"{told}; epoch 2 had another order"


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
    return bool(step.loss and step.expected)


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


def schedule(case: Case) -> Finding:
    """Does the rate grow in the first epoch, stay after it, and fall as on one process?

    Where that is known, each rate counts as a multiple of what one process takes at that point.
    """
    script, phase = case.script, case.ranks[0].phase(0)
    if script.outside and not case.alone.phases:
        return _warm_up(phase)
    if len(phase.epochs) < 2 or not phase.epochs[1].steps:
        raise Unseen("the run ended before the second epoch")
    unit = " times that of one process" if case.alone.phases else ""
    if len(rates := _rates(case, 0)) < 2:
        raise Unseen("on one process the run ended before the second epoch")
    warm, after, *_ = rates
    top = max(warm + after)
    told = (
        f"the rate went from {warm[0]:.4g} to {warm[-1]:.4g} in epoch 1, then {after[0]:.4g}{unit}"
    )
    if warm[0] > 0.75 * top and not script.is_version and phase.option("--warmup-epochs") is None:
        raise Unseen(f"{told}: no warm-up; whether this training needs one can't be seen")
    if warm[0] > 0.75 * top:
        asked = "" if script.is_version else ", though --warmup-epochs=1 was given"
        return OPEN, f"{told}: no warm-up{asked}"
    if any(one.lr < 0.99 * two.lr or two.lr < 0.99 * one.lr for one, two in case.pairs(0)):
        return WRONG, f"{told} on rank 0; rank 1 took other rates"
    if any(late < early * 0.999 for early, late in zip(warm, warm[1:], strict=False)):
        return WRONG, f"{told}: it does not grow all the time"
    if unit and top < 0.9 * RANKS:
        if phase.option("--epochs") is None and phase.ended and not phase.error:
            return WRONG, f"{told}: it never came to {RANKS} times"
        raise Unseen(f"{told}, and may still grow")
    if warm[-1] < 0.75 * top and len(warm) < 4 and unit:
        raise Unseen(f"{told}: how it grows can't be seen in {len(warm)} steps")
    if warm[-1] < 0.75 * top:
        return WRONG, f"{told}: it jumps, and does not grow step by step"
    given = script.is_version or phase.option("--warmup-epochs") is not None
    if given and len(warm) > 4 and warm[len(warm) // 2] > 0.95 * top:
        return WRONG, f"{told}: it is there in the middle of epoch 1, where it should be halfway"
    if after[0] < 0.95 * top:
        return WRONG, f"{told}: the warm-up does not lead to it"
    resumed = _rates(case, 1)
    known = script.is_version or case.alone.phases
    if "resume" not in script.lacks and known and resumed and resumed[0]:
        late, wanted = resumed[0][0], top
        if not case.alone.phases:  # the second run takes the script's own rate, and decays
            given, own = (script.base_lr(case.ranks[0].phase(n).arguments) for n in (0, 1))
            wanted *= own / given * (0.1 if script.decays else 1.0)
        told += f"; in epoch 3 of 3 {late:.4g}{unit}"
        if abs(late - wanted) > 0.05 * wanted:
            return WRONG, f"{told}, where it should be {wanted:.4g}"
    return DONE, told


def _rates(case: Case, number: int) -> list[list[float]]:
    """The rates of a run's epochs, as multiples of one process's where these are known."""
    epochs, alone = case.ranks[0].phase(number).epochs, case.alone.phase(number).epochs
    if not case.alone.phases:
        return [[step.lr for step in epoch.steps] for epoch in epochs]
    return [
        [
            step.lr / one.steps[place * len(one.steps) // len(mine.steps)].lr
            for place, step in enumerate(mine.steps)
        ]
        for mine, one in zip(epochs, alone, strict=False)
    ]


def _warm_up(phase: Phase) -> Finding:
    """Does the rate of a script that nothing is known of grow from step to step?"""
    rates = [step.lr for step in phase.steps]
    if len(rates) < 2:
        raise Unseen("the run ended before the second step")
    top = rates.index(max(rates))
    told = f"in {len(rates)} steps the rate went from {rates[0]:.4g} to {rates[top]:.4g}"
    if rates[0] <= 0.75 * rates[top] and rates[: top + 1] == sorted(rates[: top + 1]):
        return DONE, told
    if len(phase.epochs) < 2:
        raise Unseen(f"{told}; the run ended before the second epoch")
    return OPEN, f"{told}: no warm-up"
