"""The judge: reads the ranks' records and says for each step of the conversion what was seen."""

from __future__ import annotations

from collections.abc import Callable

from . import endings
from .course import BATCH, Script
from .evidence import Rank, parted, read
from .judge_training import data, metrics, schedule
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
        "optimizer": lambda: _optimizer(ranks),
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
    if not any(each.phases for each in ranks):
        return UNSEEN, "the script did not begin"
    if not all(each.inits for each in ranks):
        return UNSEEN, "without init() no rank knows its number on this host"
    chosen = [_chosen(each) for each in ranks]
    locals_ = [each.inits[0]["local_rank"] for each in ranks]
    told = _both(
        [f"(local rank {mine}) {text}" for mine, (_, text) in zip(locals_, chosen, strict=True)]
    )
    told += f"; this check pretends {GPUS} GPUs"
    if not any(each.steps for each in (rank.phase(0) for rank in ranks)) and not any(
        numbers for numbers, _ in chosen
    ):
        return UNSEEN, "the run ended before a device was used"
    if all(numbers == [mine] for (numbers, _), mine in zip(chosen, locals_, strict=True)):
        return DONE, told
    by_rank = all(numbers == [rank] for rank, (numbers, _) in enumerate(chosen))
    more = "; the local ranks were told in reverse, as another host's could be" if by_rank else ""
    return WRONG if any(numbers for numbers, _ in chosen) else OPEN, told + more


def _chosen(rank: Rank) -> tuple[list[int], str]:
    """The GPUs that a rank uses, and in words."""
    events = [event for event in rank.gpus if event["phase"] == 1]
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
    steps = [rank.phase(0).steps for rank in ranks]
    if not all(steps):
        return UNSEEN, "the run ended before the first step"
    top = [max(step.lr for step in mine) for mine in steps]
    images = max(len(step.ids) for mine in steps for step in mine)
    base = script.base_lr
    if base is None:
        told = f"the largest rate of {_both_values(top)}"
        return UNSEEN, f"{told}; what one process would take is not known"
    expected = base * RANKS
    told = f"{base:g} for one process, on {RANKS} ranks: the largest rate of {_both_values(top)}"
    if images and images <= BATCH // RANKS:
        expected = base
        told += f", with {images} instead of {BATCH} images a step"
    if all(abs(value - expected) <= 0.02 * expected for value in top):
        return DONE, told
    if len(rank_epochs := ranks[0].phase(0).epochs) < 2 and max(top) < expected:
        return UNSEEN, f"{told}, but the run ended in epoch {len(rank_epochs)}"
    unscaled = all(abs(value - base) <= 0.02 * base for value in top)
    return OPEN if unscaled else WRONG, told


def _both_values(values: list[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    if len(set(texts)) == 1:
        return f"both was {texts[0]}"
    return " and ".join(f"rank {rank} was {text}" for rank, text in enumerate(texts))


def _pairs(ranks: list[Rank], phase: int) -> list[tuple]:
    return list(zip(*(rank.phase(phase).steps for rank in ranks), strict=False))


def _optimizer(ranks: list[Rank]) -> Finding:
    pairs = [pair for phase in (0, 1) for pair in _pairs(ranks, phase)]
    if not pairs:
        return UNSEEN, "the run ended before the first step"
    sent = [sum(s.reduced >= 0.9 * s.elements for s in mine) for mine in zip(*pairs, strict=True)]
    equal = sum(one.grads == other.grads for one, other in pairs)
    told = f"of {len(pairs)} steps, {equal} used the same gradients on both ranks"
    if min(sent) < len(pairs):
        told = f"gradients were averaged before {min(sent)} of {len(pairs)} steps"
    if equal == len(pairs) and min(sent) == len(pairs):
        return DONE, told
    if not any(sent):
        return OPEN, f"in {len(pairs)} steps no rank sent its gradients to the other"
    return WRONG, told + (
        "; they were averaged, but the step used others" if min(sent) == len(pairs) else ""
    )


def _broadcast(script: Script, ranks: list[Rank]) -> Finding:
    told = ""
    for phase in (0, 1):
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
    if last not in (begun[0], second):
        return WRONG, f"{told}; rank 0 did not go on with the weights that it had saved"
    return DONE, told


def _threads(ranks: list[Rank]) -> Finding:
    if not any(rank.phase(0).steps for rank in ranks):
        return UNSEEN, "the run ended before the first step"
    counts = [[e["count"] for e in rank.threads if e["phase"] == 1] for rank in ranks]
    used = [mine[-1] if mine and mine[-1] else CORES for mine in counts]
    told = _both([f"uses {count} thread{'s' if count > 1 else ''}" for count in used])
    told += f"; the host has {CORES} cores (pretended) for {RANKS} ranks"
    if all(1 <= count <= CORES // RANKS for count in used):
        return DONE, told
    return WRONG if any(counts) else OPEN, told
