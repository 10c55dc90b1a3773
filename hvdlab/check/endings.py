"""How a run ended, and whose fault it was where it did not end well."""

from __future__ import annotations

import re
from typing import Any

from .evidence import NO_INIT, SMALL, Case, Rank
from .run import RANKS

_GIVEN_UP = re.compile(
    r"has waited for|has left|shut down|has ended|gave up|given up|broken|deadlock: rank"
)


# What an error's words, and the functions that raised it, say of the step.
_SAYS = (
    (re.compile(rf"^{NO_INIT}"), "init"),
    (re.compile(r"root.rank|broadcast_(parameters|variables|optimizer|global)"), "broadcast"),
    (re.compile(r"named_parameters|models differ|backward.passes|Distributed(Optim|Grad)|"
                r"the gradient of|gradient_predivide|step\(\) or synchronize"), "optimizer"),
    (re.compile(r"metric '.*' is not averaged"), "metrics"),
    (re.compile(r"learning rate is a schedule"), "schedule"),
    (re.compile(r"(?i)cardinality|number of samples|size mismatch between|match target batch|"
                r"process group"), "shard"),
)  # fmt: skip


def explain(case: Case) -> tuple[str, dict[str, str]]:
    """One line on the end, empty where it was a good one; and which step it proves wrong."""
    ranks = case.ranks
    if case.recording.stopped:
        here = [f"; rank {n} {told}" for n, rank in enumerate(ranks) if (told := _is_at(rank))]
        return f"stopped: {case.recording.stopped}{''.join(here)}", {}
    phase = max(1, *(len(rank.phases) for rank in ranks)) - 1
    errors = [rank.phase(phase).error for rank in ranks]
    keys = {step.key for step in case.script.steps}
    if not any(errors):
        gone = [n for n, rank in enumerate(ranks) if not rank.finished]
        if gone:
            last = case.recording.logged[gone[0]][-1:] or ["nothing was said"]
            return f"rank {gone[0]} ended without a word: {last[0][:200]}", {}
        return "", {}
    own = [n for n, error in enumerate(errors) if error and not _is_waiting(error)]
    if own:
        rank = ranks[own[0]].phase(phase)
        said = " ".join([rank.error, *rank.called])
        text = f"rank {own[0]} failed: {rank.error} ({rank.where})"
    else:
        text = _stall(ranks, phase, errors)
        said = text if text.startswith("the ranks disagree") else ""
    named = [step for words, step in _SAYS if words.search(said)]
    step = named[0] if named else _blame(ranks, phase, own[0] if own else None)
    return text, {step: text} if step in keys else {}


def _is_at(rank: Rank) -> str:
    """What a rank did when it was asked, and for how long nothing else; empty if it said nothing.

    One that is in none of the script's lines waits for the others at the end of a run.
    """
    if not rank.here or not rank.phases:
        return ""
    here, error = rank.here[0], rank.phases[-1].error
    if here["where"]:
        long = here["seconds"] >= 2  # else it is at work, only slowly
        since = f", and had done nothing else for {here['seconds']} s" if long else ""
        return f"was in {here['where']}{since}"
    return f"had failed: {error[:100]}" if error else "had come to the end of the script"


def _is_waiting(error: str) -> bool:
    return error.startswith("HorovodInternalError") or " has waited for " in error


def _stall(ranks: list[Rank], phase: int, errors: list[str | None]) -> str:
    """Which rank waits where."""
    parts = []
    for number, rank in enumerate(ranks):
        mine = rank.phase(phase)
        call = mine.calls[-1] if mine.calls else None
        if errors[number] is None:
            parts.append(f"rank {number} had come to the end of the script")
        elif call:
            parts.append(f"rank {number} waited in {_title(call)} ({mine.where or call['where']})")
        else:
            parts.append(f"rank {number} waited ({mine.where})")
    mismatch = next((e for e in errors if e and not _GIVEN_UP.search(e)), "")
    if mismatch:
        return f"the ranks disagree: {mismatch.split(': ', 1)[-1][:300]}"
    late = re.search(r"given up after \d+ s", " ".join(filter(None, errors)))
    return f"{late[0] if late else 'deadlock'}: {', '.join(parts)}"


def _title(call: dict[str, Any]) -> str:
    return f"{call['kind']} {call['name'].removeprefix(call['kind'] + '.')!r}"


def _blame(ranks: list[Rank], phase: int, failed: int | None) -> str:
    """The step of the conversion whose call one rank made and the other did not.

    failed: the rank that failed by itself, maybe at what another line of the script had sent.
    """
    phases = [rank.phase(phase) for rank in ranks]
    calls = [each.calls for each in phases]
    what = ("name", "kind") if failed is None else ("name", "kind", "where")
    place = 0
    while all(place < len(mine) for mine in calls) and all(
        calls[0][place][each] == calls[1][place][each] for each in what
    ):
        place += 1
    odd = [mine[place] for mine in calls if place < len(mine)]
    if not odd:
        return ""
    if failed is not None:  # what it got before is not what it failed at
        last = {call["where"] for call in calls[failed][place:]}
        if len(odd) < RANKS or len(last) > 1:
            return ""
    counts = [len(each.steps) for each in phases]
    kinds = [_kind(call, phases[0].steps or phases[-1].steps) for call in odd]
    unsent = [bool(each.steps) and not any(step.reduced for step in each.steps) for each in phases]
    if any(unsent) and any(call["kind"] == "survey" for call in odd):
        return "optimizer"  # one rank steps by itself, and the other one waits for its gradients
    if phase == 1 and len(phases[0].epochs) != len(phases[1].epochs):
        return "resume"
    if phase == 1 and "object" in kinds and not all(counts):
        return "resume"
    if "object" in kinds and not all(counts):
        return "resume" if not any(counts) else "broadcast"
    if "broadcast" in kinds:
        return "broadcast"
    if "barrier" in kinds:
        return "rank0"  # it carries nothing: something is done by one rank alone
    if "metric" in kinds:
        # A rank that is still in the steps of an epoch which the other one has left.
        epochs = {
            call["begun" if kind == "metric" else "epoch"]
            for call, kind in zip(odd, kinds, strict=True)
        }
        behind = len(odd) == RANKS and "gradient" in kinds and len(epochs) == 1
        # With images that it had in this epoch already, it is in the next one.
        behind &= not any(
            kind == "gradient" and phase.epochs and set(phase.pending) & set(phase.epochs[-1].ids)
            for phase, kind in zip(phases, kinds, strict=False)
        )
        return "shard" if behind else "metrics"
    if kinds == ["gradient"] and phase == 1:  # the other one had come to the end
        return "resume"
    if "gradient" in kinds and counts[0] != counts[1]:
        return "shard"
    if "gradient" in kinds and all(each.error for each in phases):
        return "optimizer"
    return ""


def _kind(call: dict[str, Any], steps: list[Any]) -> str:
    name = call["name"]
    if "optimizer_state" in name:
        return "broadcast"
    if call["kind"] == "barrier":
        return "barrier"
    if call["kind"] == "exchange" and "broadcast_object" in name or ".data" in name:
        return "object"
    if call["kind"] == "broadcast":
        return "broadcast" if call["elements"] > 1 else "object"
    if call["kind"] == "allreduce" and steps and call["elements"] >= 0.5 * steps[0].elements:
        return "gradient"
    if call["elements"] <= SMALL or call["kind"] in ("allgather", "exchange"):
        return "metric"
    return "gradient"
