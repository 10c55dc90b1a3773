"""The judge: reads the ranks' records and says for each step of the conversion what was seen."""

from __future__ import annotations

from collections.abc import Callable

from . import endings
from .course import BATCH, Script
from .evidence import Rank, parted, read
from .judge_training import adds_up, data, metrics, schedule, times_the_mean
from .run import RANKS, Recording
from .runtime_facts import CORES, GPUS
from .verdict import DONE, OPEN, UNSEEN, WRONG, StepVerdict, Verdict, new

Finding = tuple[str, str]


def judge(script: Script, name: str, recording: Recording) -> Verdict:
    """The verdict on what was seen.

    Args:
        script: of which script of the course it is a version.
        name: the file's name.
    """
    ranks = read(recording)
    verdict = new(script, name)
    verdict.ended, blamed = endings.explain(script, ranks, recording)
    for rank, each in enumerate(ranks):
        told = [f"rank {rank} tried to change {e['path']} ({e['where']})" for e in each.outside]
        told += [f"rank {rank} tried to reach {e['address']} ({e['where']})" for e in each.network]
        verdict.outside += list(dict.fromkeys(told))[:5]
    judges: dict[str, Callable[[], Finding]] = {
        "init": lambda: _init(ranks),
        "device": lambda: _device(ranks),
        "rate": lambda: _rate(script, ranks),
        "optimizer": lambda: _optimizer(script, recording, ranks),
        "broadcast": lambda: _broadcast(script, ranks),
        "shard": lambda: data(script, ranks),
        "rank0": lambda: _rank0(script, recording, ranks),
        "resume": lambda: _resume(ranks, recording),
        "metrics": lambda: metrics(script, ranks, recording),
        "schedule": lambda: schedule(script, ranks),
        "threads": lambda: _threads(ranks),
    }
    for step in script.steps:
        result, seen = judges[step.key]()
        verdict.steps.append(StepVerdict.of_step(step, result, seen))
    if not verdict.failing():  # else the end follows from what was found
        verdict.steps = [
            StepVerdict.of_step(step, WRONG, blamed[step.key]) if step.key in blamed else each
            for step, each in zip(script.steps, verdict.steps, strict=True)
        ]
    return verdict


def _both(texts: list[str]) -> str:
    """One text for each rank as one sentence."""
    if len(set(texts)) == 1:
        return f"each rank {texts[0]}"
    return "; ".join(f"rank {rank} {text}" for rank, text in enumerate(texts))


def _init(ranks: list[Rank]) -> Finding:
    missing = [rank for rank, each in enumerate(ranks) if not each.inits]
    if missing:
        errors = [ranks[rank].phase(0).error or "" for rank in missing]
        early = all(error and not error.startswith("NotInitializedError") for error in errors)
        return UNSEEN if early else OPEN, f"no init() on {_names(missing)}"
    sizes = [each.inits[0]["size"] for each in ranks]
    if sizes != [RANKS] * RANKS:
        return WRONG, _both([f"sees {size} process(es)" for size in sizes])
    return DONE, f"rank 0 and rank 1 of {RANKS}, each knows which it is"


def _names(ranks: list[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def _device(ranks: list[Rank]) -> Finding:
    """In every run, whose ranks are on hosts of their own or share one."""
    if not any(each.phases for each in ranks):
        return UNSEEN, "the script did not begin"
    if not all(each.inits for each in ranks):
        return UNSEEN, "without init() no rank knows its number on this host"
    results, texts = [], []
    for number, wheres in enumerate(zip(*(each.inits for each in ranks), strict=False), 1):
        locals_ = [each["local_rank"] for each in wheres]
        result, text = _device_of_run(ranks, number, locals_)
        results.append(result)
        texts.append(text)
        if any(locals_):
            break  # ranks that share a host; nothing more is to be learned
    told = next((t for r, t in zip(results, texts, strict=True) if r in (OPEN, WRONG)), texts[-1])
    told += f"; this check pretends {GPUS} GPUs a host"
    for result in (OPEN, WRONG, UNSEEN):
        if result in results:
            return result, told
    if not any(each["local_rank"] for rank in ranks for each in rank.inits):
        return UNSEEN, f"{told}; the run ended before ranks shared a host"
    return DONE, told


def _device_of_run(ranks: list[Rank], number: int, locals_: list[int]) -> Finding:
    chosen = [_chosen(each, number) for each in ranks]
    used = [numbers for numbers, _ in chosen]
    where = "on one host" if any(locals_) else "on two hosts"
    told = f"{where}, " + _both(
        [f"(local rank {mine}) {text}" for mine, (_, text) in zip(locals_, chosen, strict=True)]
    )
    if not any(each.phase(number - 1).steps for each in ranks) and not any(used):
        return UNSEEN, "the run ended before a device was used"
    if used == [[mine] for mine in locals_]:
        return DONE, told
    if any(used) and used == [[rank] for rank in range(RANKS)]:
        told += ": that is the rank, and not the local rank"
    return WRONG if any(used) else OPEN, told


def _chosen(rank: Rank, number: int) -> tuple[list[int], str]:
    """The GPUs that a rank uses in a run, and in words."""
    events = [event for event in rank.gpus if event["phase"] == number]
    environment = [event for event in events if event["how"] == "environment"]
    lists = [event["chosen"] for event in events if "chosen" in event]
    set_, used = ([e["index"] for e in events if e["how"] == how] for how in ("set", "used"))
    if environment:
        numbers = environment[-1]["chosen"]
    elif any(lists):
        numbers = lists[-1]
    elif lists:
        return [], "sees all GPUs" if events[-1]["how"] == "session" else "uses no GPU"
    elif used:
        # A device without a number is the one that was set, from then on.
        numbers = sorted(set(used[1:] if set_ and used[0] == 0 and len(set(used)) > 1 else used))
        if set_ and used == [0]:
            numbers = [set_[-1]]
        if not set_ and 0 in used and len(numbers) > 1:
            numbers = [n for n in numbers if n]
    elif set_:
        numbers = [set_[-1]]
    else:
        return [], "chooses no GPU"
    return numbers, f"uses GPU {', '.join(map(str, numbers))}"


def _rate(script: Script, ranks: list[Rank]) -> Finding:
    """In the run that is given a rate, and in the one that takes the script's own."""
    steps = [rank.phase(0).steps for rank in ranks]
    if not all(steps):
        return UNSEEN, "the run ended before the first step"
    top = [max(step.lr for step in mine) for mine in steps]
    images = max(len(step.ids) for mine in steps for step in mine)
    base = script.base_lr(ranks[0].phase(0).arguments)
    if base is None:
        told = f"the largest rate of {_both_values(top)}"
        return UNSEEN, f"{told}; what one process would take is not known"
    factor = RANKS
    told = f"{base:g} for one process, on {RANKS} ranks: the largest rate of {_both_values(top)}"
    if images and images <= BATCH // RANKS:
        factor = 1
        told += f", with {images} instead of {BATCH} images a step"
    elif adds_up(ranks) and all(_near(value, base) for value in top):
        factor = 1
        told += ", with gradients that are added up and not averaged"
    elif all(_near(value, base * RANKS**0.5) for value in top):
        return DONE, f"{told}: the square root of the number of ranks, which needs a reason"
    if not all(_near(value, base * factor) for value in top):
        if len(rank_epochs := ranks[0].phase(0).epochs) < 2 and max(top) < base * factor:
            return UNSEEN, f"{told}, but the run ended in epoch {len(rank_epochs)}"
        *_, last = rates = [step.lr for step in steps[0]]
        grows = base * 1.02 < last < base * factor and last == top[0] > rates[0]
        if grows and "schedule" not in script.lacks:
            return UNSEEN, f"{told}, and still growing in the last step"
        unscaled = factor > 1 and all(_near(value, base) for value in top)
        if not script.names_rate:
            return UNSEEN, f"{told}; what one process would take is not known"
        return OPEN if unscaled else WRONG, told
    begun = [step.lr for step in ranks[0].phase(0).epochs[0].steps]
    if "schedule" in script.lacks and factor > 1 and all(_near(rate, base) for rate in begun):
        return WRONG, f"{told}, but that of one process in all of epoch 1"
    return _own_rate(script, ranks, factor, told)


def _own_rate(script: Script, ranks: list[Rank], factor: int, told: str) -> Finding:
    """Is the rate that the script has by itself that of the program for one process?"""
    phase = ranks[0].phase(1)
    base = script.base_lr(phase.arguments)
    if script.outside or not phase.steps or base is None or phase.error:
        return DONE, told
    own = max(step.lr for step in phase.steps)
    # One that is not a multiple is a matter of taste.
    twice = [base * factor * RANKS * 0.1**n for n in range(3 if script.decays else 1)]
    if not any(_near(own, value) for value in twice):
        return DONE, told
    return WRONG, (
        f"{told}; without --base-lr it was {own:.4g}, where {base:g} is the rate of one process"
    )


def _near(value: float, expected: float) -> bool:
    return abs(value - expected) <= 0.02 * expected


def _both_values(values: list[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    if len(set(texts)) == 1:
        return f"both was {texts[0]}"
    return " and ".join(f"rank {rank} was {text}" for rank, text in enumerate(texts))


def _pairs(ranks: list[Rank], phase: int) -> list[tuple]:
    return list(zip(*(rank.phase(phase).steps for rank in ranks), strict=False))


def _optimizer(script: Script, recording: Recording, ranks: list[Rank]) -> Finding:
    pairs = [pair for phase in (0, 1) for pair in _pairs(ranks, phase)]
    if not pairs:
        return UNSEEN, "the run ended before the first step"
    sent = [sum(s.reduced >= 0.9 * s.elements for s in mine) for mine in zip(*pairs, strict=True)]
    equal = sum(one.grads == other.grads for one, other in pairs)
    told = f"of {len(pairs)} steps, {equal} used the same gradients on both ranks"
    if min(sent) < len(pairs):
        told = f"gradients were averaged before {min(sent)} of {len(pairs)} steps"
    if equal == len(pairs) and min(sent) == len(pairs):
        wrong = _size(script, ranks) or _too_early(recording)
        return (WRONG, wrong) if wrong else (DONE, told)
    if not any(sent):
        return OPEN, f"in {len(pairs)} steps no rank sent its gradients to the other"
    return WRONG, told + (
        "; they were averaged, but the step used others" if min(sent) == len(pairs) else ""
    )


def _size(script: Script, ranks: list[Rank]) -> str:
    """What is wrong with the size of the update; empty if nothing is, or if it can't be seen."""
    steps = [step for rank in ranks for step in rank.phase(0).steps]
    if without := min(step.without for step in steps):
        return f"{without} parameters got no gradient, on no rank and in no step"
    times = times_the_mean(ranks)
    base, top = script.base_lr(ranks[0].phase(0).arguments), max(step.lr for step in steps)
    if times == RANKS and base is not None and _near(top, base * RANKS):
        return (
            f"the gradients of the ranks are added up, and the rate is multiplied as well: each "
            f"step is {RANKS} times too large"
        )
    if times == 1 / RANKS:
        return f"the gradients are divided by {RANKS} twice: each step is {RANKS} times too small"
    return ""


def _too_early(recording: Recording) -> str:
    """What the runtime has said of steps that come before the last of their backward passes."""
    lines = (line for logged in recording.logged for line in logged)
    return next((line for line in lines if "backward passes: each call reduces" in line), "")


def _broadcast(script: Script, ranks: list[Rank]) -> Finding:
    told = ""
    for phase in (0,) if "resume" in script.lacks else (0, 1):
        pairs = _pairs(ranks, phase)
        if len(pairs) < 2:
            if phase == 0:
                return UNSEEN, "the run ended before the second step"
            continue
        which = "" if phase == 0 else " after the resume"
        same = [one.before == other.before for one, other in pairs]
        same.append(pairs[-1][0].after == pairs[-1][1].after)
        if not same[0] and not same[1]:
            return (OPEN if phase == 0 else WRONG), (
                f"the ranks began with different weights{which or ' (the check made them so)'}, "
                "and still had different ones in step 2"
            )
        if phase == 1 and _resumes_from_another(ranks):
            return WRONG, (
                "after the resume both ranks had weights that are not those of rank 0, which has "
                "read the checkpoint"
            )
        averaged = all(one.grads == other.grads for one, other in pairs)
        # Ranks that went on at different epochs take steps of different length: that is the resume.
        apart = phase == 1 and len({len(parted(rank.phase(1))) for rank in ranks}) > 1
        if averaged and not apart and not all(same[1:]):
            step = same.index(False, 1)
            return WRONG, (
                f"equal weights{which} at first, the same gradients in each step, and yet "
                f"different weights in step {step + 1}: something else than the weights differed"
            )
        at = "step 1" if same[0] else "step 2"
        told += f"{'; ' if told else ''}the weights of both ranks were equal from {at} on{which}"
    return DONE, told


def _resumes_from_another(ranks: list[Rank]) -> bool:
    """Whether the weights that both ranks have after the resume are not those of rank 0.

    They are equal before step 1, or only before step 2, as with a callback.
    """
    (mine, other), (second, _) = _pairs(ranks, 1)[:2]
    if mine.before != other.before:
        return second.before != mine.after and second.before == other.after
    return mine.before not in [rank.phase(0).steps[-1].after for rank in ranks]


def _rank0(script: Script, recording: Recording, ranks: list[Rank]) -> Finding:
    if not any(rank.phase(0).steps for rank in ranks):
        return UNSEEN, "the run ended before the first step"
    texts, wrong = [], False
    for rank in range(RANKS):
        lines = [*recording.printed[rank], *_log_lines(recording.logged[rank])]
        files = recording.files[rank]
        wrong |= bool(rank and (lines or files))
        text = f"printed {len(lines)} lines and wrote {len(files)} files"
        if rank and lines:
            text += f", such as {lines[0][:50]!r}"
        texts.append(text + (f", such as {files[0]}" if rank and files else ""))
    told = _both(texts)
    if wrong:
        return WRONG, told
    ended_well = all(rank.phase(0).ended and not rank.phase(0).error for rank in ranks)
    if script.outside and not ended_well and not recording.files[0]:
        return UNSEEN, f"{told}; the run ended early"
    if not script.outside and not (recording.files[0] and recording.printed[0]):
        if not ended_well:
            return UNSEEN, f"{told}; the run ended early"
        return WRONG, told
    return DONE, told


def _log_lines(lines: list[str]) -> list[str]:
    """What a script logs on purpose; warnings of libraries are not its doing."""
    return [line for line in lines if line.startswith("INFO:")]


def _resume(ranks: list[Rank], recording: Recording) -> Finding:
    phases = [rank.phase(1) for rank in ranks]
    if not all(phase.steps for phase in phases):
        return UNSEEN, "the run ended before the first step after a resume"
    last = ranks[0].phase(0).steps[-1].after
    begun = [phase.steps[0].before for phase in phases]
    second = phases[0].steps[1].before if len(phases[0].steps) > 1 else ""
    counts = [len(parted(phase)) for phase in phases]
    told = "--epochs 3 --resume after 2 epochs: " + _both(
        [f"trained {count} epoch{'s' if count > 1 else ''}" for count in counts]
    )
    if counts != [1] * RANKS:
        return WRONG, told
    told_by_0 = [call for call in phases[1].calls if not call["steps"]]
    if not any(call["kind"] in ("broadcast", "exchange", "allgather") for call in told_by_0):
        return OPEN, f"{told}; rank 1 asked nobody where to go on"
    # With weights of another rank, it is what was broadcast that is wrong.
    if last not in (begun[0], second) and not (second and _resumes_from_another(ranks)):
        return WRONG, f"{told}; rank 0 did not go on with the weights that it had saved"
    return DONE, told


def _threads(ranks: list[Rank]) -> Finding:
    """In the last run: there the ranks share a host."""
    if not any(rank.phase(0).steps for rank in ranks):
        return UNSEEN, "the run ended before the first step"
    last = max(n for n in (0, 1) if any(rank.phase(n).steps for rank in ranks)) + 1
    inits = [e for rank in ranks for e in rank.inits if e["phase"] == last]
    sharing = max((e.get("local_size", RANKS) for e in inits), default=RANKS)
    counts = [[e["count"] for e in rank.threads if e["phase"] == last] for rank in ranks]
    used = [mine[-1] if mine and mine[-1] else CORES for mine in counts]
    told = _both([f"uses {count} thread{'s' if count > 1 else ''}" for count in used])
    told += (
        f"; the host has {CORES} cores (pretended) for {sharing} rank{'s' if sharing > 1 else ''}"
    )
    if any(not 1 <= count <= CORES // sharing for count in used):
        return WRONG if any(counts) else OPEN, told
    return (DONE, told) if sharing > 1 else (UNSEEN, f"{told}; no ranks that share one were seen")
