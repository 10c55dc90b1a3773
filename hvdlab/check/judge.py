"""The judge: reads the ranks' records and says for each step of the conversion what was seen."""

from __future__ import annotations

import re

from . import endings, rates, reported, training
from .course import Script
from .evidence import NO_INIT, Case, Finding, Rank, Unseen, parted, tell_both
from .run import RANKS, Recording
from .runtime_facts import CORES, GPUS
from .verdict import DONE, OPEN, UNSEEN, WRONG, StepVerdict, Verdict

# What a logger or a bar of progress writes on stderr.
_TOLD = re.compile(r"INFO:|.*\d%\|.*\| *\d+/\d+ ")


def judge(script: Script, name: str, recording: Recording) -> Verdict:
    """The verdict on what was seen.

    Args:
        script: of which script of the course it is a version.
        name: the file's name.
    """
    case = Case.of(script, recording)
    verdict = Verdict(script.lab, name, script.name)
    verdict.ended, blamed = endings.explain(case)
    for rank, each in enumerate(case.ranks):
        told = [f"rank {rank} tried to change {e['path']} ({e['where']})" for e in each.outside]
        told += [f"rank {rank} tried to reach {e['address']} ({e['where']})" for e in each.network]
        verdict.outside += list(dict.fromkeys(told))[:5]
    for step in script.steps:
        try:
            if verdict.failing() == ["init"]:
                raise Unseen("without init() each process trains alone")
            result, seen = _JUDGES[step.key](case)
        except Unseen as early:
            result, seen = UNSEEN, str(early)
        except (LookupError, ArithmeticError) as odd:  # of a script that does what no other does
            result, seen = UNSEEN, f"what was recorded can't be judged: {odd!r}"
        verdict.steps.append(StepVerdict.of_step(step, result, seen))
    if not verdict.failing():  # else the end follows from what was found
        verdict.steps = [
            StepVerdict.of_step(step, WRONG, blamed[step.key]) if step.key in blamed else each
            for step, each in zip(script.steps, verdict.steps, strict=True)
        ]
    return verdict


def _init(case: Case) -> Finding:
    missing = [rank for rank, each in enumerate(case.ranks) if not each.inits]
    if missing:
        phases = [case.ranks[rank].phase(0) for rank in missing]
        trained = any(phase.steps or phase.pending for phase in phases)
        errors = [phase.error or "" for phase in phases]
        # An error may have come before; a script that was stopped may only have been slow.
        early = all(error and not error.startswith(NO_INIT) for error in errors)
        early = not trained and (early or bool(case.recording.stopped))
        names = " and ".join(f"rank {rank}" for rank in missing)
        return UNSEEN if early else OPEN, f"no init() on {names}"
    sizes = [each.inits[0]["size"] for each in case.ranks]
    if sizes != [RANKS] * RANKS:
        return WRONG, tell_both([f"sees {size} process(es)" for size in sizes])
    alone = case.alone.phase(0)
    fails = alone.error and not alone.error.startswith(NO_INIT)
    if alone.ended and not fails and not case.alone.inits and not case.alone.gpus:
        return WRONG, "init() is called on a host with GPUs only: without one each rank is alone"
    if _nobody_asks(case):
        return WRONG, (
            "init() was called and gradients went between the ranks, but the script asks neither "
            "for rank() nor for size(): each process takes itself for the only one"
        )
    return DONE, f"rank 0 and rank 1 of {RANKS}, each knows which it is"


def _nobody_asks(case: Case) -> bool:
    """Whether all ranks read, take and print what one process would, for want of their numbers.

    A version of the course's script may be on its way: the steps that ask are still to come.
    """
    asked = any(rank.asked for rank in case.ranks)
    if case.script.is_version or asked or not case.recording.printed[1]:
        return False
    steps = [step for phase in case.phases(0) for step in phase.steps]
    images = [set(phase.epochs[0].ids) for phase in case.phases(0) if phase.epochs]
    sent = bool(steps) and all(step.reduced >= step.elements for step in steps)
    return sent and len(images) == RANKS and len(images[0] & images[1]) > 0.9 * len(images[0])


def _device(case: Case) -> Finding:
    """In every run, whose ranks are on hosts of their own or share one."""
    if not all(each.inits for each in case.ranks):
        raise Unseen("without init() no rank knows its number on this host")
    for number, wheres in enumerate(zip(*(each.inits for each in case.ranks), strict=False), 1):
        locals_ = [each["local_rank"] for each in wheres]
        result, told = _device_of_run(case, number, locals_)
        if result != DONE or any(locals_):
            break  # ranks that share a host; nothing more is to be learned
    told += f"; this check pretends {GPUS} GPUs a host"
    if result == DONE and not any(locals_):
        raise Unseen(f"{told}; the run ended before ranks shared a host")
    return result, told


def _device_of_run(case: Case, number: int, locals_: list[int]) -> Finding:
    chosen = [_chosen([e for e in rank.gpus if e["phase"] == number]) for rank in case.ranks]
    used = [numbers for numbers, _ in chosen]
    where = "on one host" if any(locals_) else "on two hosts"
    told = f"{where}, " + tell_both(
        [f"(local rank {mine}) {text}" for mine, (_, text) in zip(locals_, chosen, strict=True)]
    )
    if not any(phase.steps for phase in case.phases(number - 1)) and not any(used):
        return UNSEEN, "the run ended before a device was used"
    if used == [[mine] for mine in locals_]:
        return DONE, told
    if any(used) and used == [[rank] for rank in range(RANKS)]:
        told += ": that is the rank, and not the local rank"
    return WRONG if any(used) else OPEN, told


def _chosen(events: list[dict]) -> tuple[list[int], str]:
    """The GPUs that a rank uses in a run, and in words."""
    lists = [event["chosen"] for event in events if "chosen" in event]
    set_, used = ([e["index"] for e in events if e["how"] == how] for how in ("set", "used"))
    numbers = lists[-1] if lists else sorted({*used, *set_[-1:]})
    if not numbers:
        words = "sees all GPUs" if lists and events[-1]["how"] == "session" else "uses no GPU"
        return [], words if lists else "chooses no GPU"
    return numbers, f"uses GPU {', '.join(map(str, numbers))}"


def _broadcast(case: Case) -> Finding:
    told = ""
    for phase in (0,) if "resume" in case.script.lacks else (0, 1):
        pairs = case.pairs(phase)
        if len(pairs) < 2:
            if phase == 0:
                raise Unseen("the run ended before the second step")
            continue
        which = "" if phase == 0 else " after the resume"
        same = [one.before == other.before for one, other in pairs]
        same.append(pairs[-1][0].after == pairs[-1][1].after)
        if not same[0] and not same[1]:
            return (OPEN if phase == 0 else WRONG), (
                f"the ranks began with different weights{which or ' (the check made them so)'}, "
                "and still had different ones in step 2"
            )
        if phase == 1 and _resumes_from_another(case):
            return WRONG, (
                "after the resume both ranks had weights that are not those of rank 0, which has "
                "read the checkpoint"
            )
        if len({each.buffers for each in case.phases(phase)}) > 1:
            return WRONG, (
                f"the model's buffers, such as the running means of a batch norm, differed{which} "
                "before the first batch"
            )
        if pairs[-1][0].untrained != pairs[-1][1].untrained:
            return WRONG, (
                f"the parameters that the optimizer doesn't train differed{which} until the end"
            )
        averaged = all(one.is_as(other) for one, other in pairs)
        # Ranks that went on at different epochs take steps of different length: that is the resume.
        # Where they do so from the start, it is the schedule.
        apart = any(one.lr != other.lr for one, other in pairs)
        if phase == 1:
            counts = {len(parted(each)) for each in case.phases(1)}
            apart = bool(_other_rates(case)) or len(counts) > 1
        if averaged and not apart and not all(same[1:]):
            return WRONG, (
                f"equal weights{which} at first, the same gradients in each step, and yet different"
                f" weights in step {same.index(False, 1) + 1}: something else than the weights "
                "differed, such as the optimizer's state"
            )
        at = "step 1" if same[0] else "step 2"
        told += f"{'; ' if told else ''}the weights of both ranks were equal from {at} on{which}"
    return DONE, told


def _resumes_from_another(case: Case) -> bool:
    """Whether the weights that both ranks have after the resume are not those of rank 0.

    They are equal before step 1, or only before step 2, as with a callback.
    """
    if len(case.pairs(1)) < 2:
        return False
    (mine, other), (second, _) = case.pairs(1)[:2]
    if mine.before != other.before:
        return second.before != mine.after and second.before == other.after
    return mine.before not in [phase.steps[-1].after for phase in case.phases(0)]


def _rank0(case: Case) -> Finding:
    if not any(phase.steps or phase.ended and not phase.error for phase in case.phases(0)):
        raise Unseen("the run ended before the first step")
    recording, texts, shown, wrong = case.recording, [], [], False
    for rank in range(RANKS):
        # What a script logs on purpose; warnings of libraries are not its doing.
        logged = [event["text"] for event in case.ranks[rank].logged]
        logged = logged or [x for x in recording.logged[rank] if _TOLD.match(x)]
        lines, files = [*recording.printed[rank], *logged], recording.files[rank]
        wrong |= bool(rank and (lines or files))
        shown.append(len(lines))
        text = f"printed {len(lines)} lines and wrote {len(files)} files"
        if rank and lines:
            text += f", such as {lines[0][:50]!r}"
        texts.append(text + (f", such as {files[0]}" if rank and files else ""))
    told = tell_both(texts)
    if wrong:
        return WRONG, told
    is_version = case.script.is_version
    nothing = not recording.files[0] or not (recording.printed[0] or not is_version)
    if nothing and not all(phase.ended and not phase.error for phase in case.phases(0)):
        raise Unseen(f"{told}; the run ended early")
    if not is_version:  # it need not print, nor write, unless it was told where
        nothing = nothing and shown[0] == 0 and bool(case.ranks[0].phase(0).option("--log-dir"))
    return WRONG if nothing else DONE, told


def _resume(case: Case) -> Finding:
    phases = case.phases(1)
    if not all(phase.steps for phase in phases):
        raise Unseen("the run ended before the first step after a resume")
    last = case.ranks[0].phase(0).steps[-1].after
    second = phases[0].steps[1].before if len(phases[0].steps) > 1 else ""
    counts = [len(parted(phase)) for phase in phases]
    told = "--epochs 3 --resume after 2 epochs: " + tell_both(
        [f"trained {count} epoch{'s' if count > 1 else ''}" for count in counts]
    )
    if counts != [1] * RANKS:
        return WRONG, told
    if other := _other_rates(case):
        return WRONG, f"{told}; their rates were {other}, as in different epochs"
    before, common = (
        len(set.intersection(*(set(parted(phase)[0]) for phase in case.phases(n)))) for n in (0, 1)
    )
    if common > 0.1 * len(parted(phases[0])[0]) and before <= RANKS:
        return WRONG, (
            f"{told}, and then {common} images were read by both ranks, unlike before the resume: "
            "as in different epochs"
        )
    asked = {call["kind"] for call in phases[1].calls if not call["steps"]}
    if not asked & {"broadcast", "exchange", "allgather"}:
        return OPEN, f"{told}; rank 1 asked nobody where to go on"
    # With weights of another rank, it is what was broadcast that is wrong.
    begun = phases[0].steps[0].before
    if last not in (begun, second) and not (second and _resumes_from_another(case)):
        return WRONG, f"{told}; rank 0 did not go on with the weights that it had saved"
    return DONE, told


def _other_rates(case: Case) -> str:
    """The ranks' rates in a step after the resume, where they differ and never did before.

    With other weights as well, all of the state is another one: that is the broadcast. Ranks that
    come to a good end are in the same epochs: that is the schedule.
    """
    if not any(phase.error for phase in case.phases(1)):
        return ""
    before, after = ([(one.lr, other.lr) for one, other in case.pairs(n)] for n in (0, 1))
    same = any(one.before == other.before for one, other in case.pairs(1)[:2])
    if not same or any(one != other for one, other in before):
        return ""
    return next((f"{one:.4g} and {other:.4g}" for one, other in after if one != other), "")


def _threads(case: Case) -> Finding:
    """In the last run: there the ranks share a host."""
    seen = [
        n for n in (0, 1)
        if any(phase.steps or phase.ended and not phase.error for phase in case.phases(n))
    ]  # fmt: skip
    if 0 not in seen:
        raise Unseen("the run ended before the first step")
    result, told, sharing = _threads_of_run(case.ranks, seen[-1] + 1)
    if result == OPEN and any(rank.threads for rank in case.without_gpus):
        result, told, sharing = _threads_of_run(case.without_gpus, 1)
        told = f"without a GPU {told}"
    if result != DONE:
        return result, told
    apart = {e["count"] for rank in case.ranks for e in rank.threads if e["phase"] == 1}
    inits = [each for rank in case.ranks for each in rank.inits]
    is_alone = any(each["phase"] == each.get("local_size") == 1 for each in inits)
    # As the only process of its host; a version of the course's script takes all cores then.
    one = {e["count"] for e in case.alone.threads if e["phase"] == 1}
    whole = CORES in one or (case.script.is_version and is_alone)
    if whole and apart == {CORES // RANKS}:
        return WRONG, (
            f"on a host of its own each rank uses {CORES // RANKS} of {CORES} cores (pretended): "
            "they are shared by the ranks of that host only"
        )
    return (DONE, told) if sharing > 1 else (UNSEEN, f"{told}; no ranks that share one were seen")


def _threads_of_run(ranks: list[Rank], number: int) -> tuple[str, str, int]:
    """The result and what was seen of a run, and how many ranks shared a host."""
    inits = [each for rank in ranks for each in rank.inits if each["phase"] == number]
    sharing = max((each.get("local_size", RANKS) for each in inits), default=RANKS)
    counts = [[each["count"] for each in r.threads if each["phase"] == number] for r in ranks]
    used = [mine[-1] if mine and mine[-1] else CORES for mine in counts]
    told = tell_both([f"uses {count} thread{'s' if count > 1 else ''}" for count in used])
    told += (
        f"; the host has {CORES} cores (pretended) for {sharing} rank{'s' if sharing > 1 else ''}"
    )
    if all(1 <= count <= CORES // sharing for count in used):
        return DONE, told, sharing
    return WRONG if any(counts) else OPEN, told, sharing


_JUDGES = {
    "init": _init,
    "device": _device,
    "rate": rates.rate,
    "optimizer": training.optimizer,
    "broadcast": _broadcast,
    "shard": training.shard,
    "rank0": _rank0,
    "resume": _resume,
    "metrics": reported.metrics,
    "schedule": rates.schedule,
    "threads": _threads,
}
