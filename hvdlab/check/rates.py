"""The judge's view of the learning rate: its size, its warm-up and its schedule.

The measure of it: N ranks take N times the rate that one process takes at the same point.
"""

from __future__ import annotations

from .course import BATCH
from .evidence import Case, Finding, Phase, Unseen
from .run import RANKS
from .training import is_adasum, near, times_the_mean
from .verdict import DONE, OPEN, WRONG


def rate(case: Case) -> Finding:
    """In the run that is given a rate, and in the one that takes the script's own."""
    script, steps = case.script, case.steps(0)
    _are_known(case)
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
    elif is_adasum(case) and all(near(value, base) for value in top):
        return DONE, f"{told}, and Adasum, which finds the length of a step by itself"
    elif times_the_mean(case) == RANKS and all(near(value, base) for value in top):
        factor = 1
        told += ", with gradients that are added up and not averaged"
    elif all(near(value, base * RANKS**0.5) for value in top):
        return DONE, f"{told}: the square root of the number of ranks, which needs a reason"
    if not all(near(value, base * factor) for value in top):
        if len(epochs := case.ranks[0].phase(0).epochs) < 2 and max(top) < base * factor:
            raise Unseen(f"{told}, but the run ended in epoch {len(epochs)}")
        *_, last = rates = [step.lr for step in steps[0]]
        grows = base * 1.02 < last < base * factor and last == top[0] > rates[0]
        if grows and "schedule" not in script.lacks:
            raise Unseen(f"{told}, and still growing in the last step")
        grown = rates[: rates.index(top[0]) + 1]
        falls = near(grown[0], base) and grown == sorted(grown) and last < grown[0]
        if len(set(grown)) > 2 and falls and "schedule" not in script.lacks:
            raise Unseen(f"{told}, as it fell before it had grown to its end")
        if not script.names_rate and not case.alone.phases:
            raise Unseen(f"{told}; what one process would take is not known")
        unscaled = factor > 1 and all(near(value, base) for value in top)
        return OPEN if unscaled else WRONG, told
    if wrong := _of_groups(case, factor):
        return WRONG, f"{told}; {wrong}"
    begun = [step.lr for step in case.ranks[0].phase(0).epochs[0].steps]
    if "schedule" in script.lacks and factor > 1 and all(near(each, base) for each in begun):
        return WRONG, f"{told}, but that of one process in all of epoch 1"
    return _own_rate(case, factor, told)


def _are_known(case: Case) -> None:
    """Raises Unseen where they are not, of a step that no optimizer of a framework took."""
    if not all(step.lr for phase in case.phases(0) for step in phase.steps if step.moved):
        raise Unseen("the script takes its steps by itself; the rate of one can't be seen")


def _of_groups(case: Case, factor: int) -> str:
    """Which group of parameters has another rate than N times that of one process; or empty."""
    mine, alone = (
        [max(rates) for rates in zip(*(step.rates for step in rank.phase(0).steps), strict=False)]
        for rank in (case.ranks[0], case.alone)
    )
    for number, (rate, base) in enumerate(zip(mine, alone, strict=False), 1):
        if not near(rate, base * factor):
            return (
                f"group {number} of {len(mine)} of the optimizer's parameters had {rate:.4g}, "
                f"where it has {base:.4g} on one process"
            )
    return ""


def _own_rate(case: Case, factor: int, told: str) -> Finding:
    """The rate that the script has by itself, where the ranks share a host: is it that of the
    program for one process, times N?"""
    phase, alone = case.ranks[0].phase(1), case.alone.phase(1)
    if phase.error or not phase.steps:
        return DONE, told
    own = max(step.lr for step in phase.steps)
    is_same = alone.steps and len(alone.epochs) == len(phase.epochs)
    if factor > 1 and is_same and near(own, max(step.lr for step in alone.steps)):
        return WRONG, f"{told}; but on one host, where ranks share it, it was not multiplied"
    base = case.script.base_lr(phase.arguments)
    if case.script.outside or base is None:
        return DONE, told
    # One that is not a multiple is a matter of taste.
    falls = [0.1**n for n in range(3 if case.script.decays else 1)]
    if any(near(own, base * factor * RANKS * fall) for fall in falls):
        return WRONG, (
            f"{told}; without --base-lr it was {own:.4g}, where {base:g} is the rate of one process"
        )
    return DONE, told


def _both_values(values: list[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    if len(set(texts)) == 1:
        return f"both was {texts[0]}"
    return " and ".join(f"rank {rank} was {text}" for rank, text in enumerate(texts))


def schedule(case: Case) -> Finding:
    """Does the rate grow in the first epoch, stay after it, and fall as on one process?

    Where that is known, each rate counts as a multiple of what one process takes at that point.
    """
    script, phase = case.script, case.ranks[0].phase(0)
    if script.outside and not case.alone.phases:
        return _warm_up(phase)
    if len(phase.epochs) < 2 or not phase.epochs[1].steps:
        raise Unseen("the run ended before the second epoch")
    _are_known(case)
    unit = " times that of one process" if _has_measure(case) else ""
    if len(rates := _rates(case, 0)) < 2 or not all(rates[:2]):
        raise Unseen("on one process the run ended before the second epoch")
    warm, after, *_ = rates
    top = max(warm + after)
    told = (
        f"the rate went from {warm[0]:.4g} to {warm[-1]:.4g} in epoch 1, then {after[0]:.4g}{unit}"
    )
    if unit and top < 1.05:
        raise Unseen(f"{told}: nothing that it could warm up to")
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
        stays = warm[0] < warm[-1] and len(after) > 2 and after[0] == after[-1] > 1.05
        stays &= not near(top, RANKS**0.5) and not is_adasum(case)  # which need no N times
        if stays or (phase.option("--epochs") is None and phase.ended and not phase.error):
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
    known = script.is_version or unit
    goes_on = len(case.ranks[0].phase(1).epochs) == 1 and "resume" not in script.lacks
    if goes_on and known and resumed and resumed[0]:
        late, wanted = resumed[0][0], top
        if not unit:  # the second run takes the script's own rate, and decays
            given, own = (script.base_lr(case.ranks[0].phase(n).arguments) for n in (0, 1))
            wanted *= own / given * (0.1 if script.decays else 1.0)
        told += f"; in epoch 3 of 3 {late:.4g}{unit}"
        if abs(late - wanted) > 0.05 * wanted:
            return WRONG, f"{told}, where it should be {wanted:.4g}"
        if rate := _never_falls(case):
            return WRONG, (
                f"{told}; on one process it is {rate:.4g} there, the full rate, where the given "
                "script takes a tenth after 60 % of the epochs"
            )
    return DONE, told


def _never_falls(case: Case) -> float:
    """The rate of one process in epoch 3 of 3, if it is the full one where it should have fallen;
    or 0."""
    last, script = case.alone.phase(1), case.script
    once = len(last.epochs) == 1 and last.steps
    if not script.decays or last.option("--epochs") != "3" or not once:
        return 0.0
    first = max((step.lr for step in case.alone.phase(0).steps), default=0.0)
    rate, full = last.steps[-1].lr, script.base_lr(last.arguments) if script.names_rate else first
    return rate if full is not None and near(rate, full) else 0.0


def _has_measure(case: Case) -> bool:
    """Whether one process's rates are known, and don't warm up themselves."""
    rates = [step.lr for step in case.alone.phase(0).steps]
    return bool(case.alone.phases) and (not rates or rates[0] > 0.5 * max(rates))


def _rates(case: Case, number: int) -> list[list[float]]:
    """The rates of a run's epochs, as multiples of one process's where these are known."""
    epochs, alone = case.ranks[0].phase(number).epochs, case.alone.phase(number).epochs
    if not _has_measure(case):
        return [[step.lr for step in epoch.steps] for epoch in epochs]
    return [
        [
            step.lr / one.steps[place * len(one.steps) // len(mine.steps)].lr
            for place, step in enumerate(mine.steps if one.steps else ())
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
