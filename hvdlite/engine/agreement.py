"""What ranks decide that ask for different things, from all ranks' pending calls.

What all have asked for runs, in rank 0's order; a call that two ranks describe differently fails
on every rank with the same message; the rest waits for the next round.

Where nothing is left that could run and every rank waits, that is a deadlock, and all calls fail.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple

from hvdlite.engine.kinds import KINDS
from hvdlite.request import Descriptor

# Seconds in which nothing happens before the ranks ask each other whether anything still can. A
# rank may make several calls before it waits, and other threads of it some more.
QUIET = 1.0


class Offer(NamedTuple):
    """What one rank tells the others where the digests differ."""

    calls: Sequence[Descriptor]
    waited: Sequence[str] = ()  # the keys of those for which threads wait, if all that call do
    # Where this rank waits, a text for each of its threads that make calls, if all of them have
    # waited in this group for QUIET seconds: then it will make no other call.
    waits: Sequence[str] = ()


class Decision(NamedTuple):
    """What becomes of the ranks' calls; the same on every rank."""

    run: list[Descriptor]  # in the order of the first rank that asks for them
    errors: dict[str, str]  # by the key of a call: what is wrong with it
    deadlock: str = ""  # what is wrong with all of them


def disagreement(descriptors: Sequence[Descriptor], ranks: Sequence[int]) -> str:
    """The message for a call that the ranks describe differently."""
    parts = []
    shown = [descriptor.values() for descriptor in descriptors]
    kinds = {descriptor.kind for descriptor in descriptors}
    # Of different kinds, the other fields mean different things.
    for aspect in shown[0] if len(kinds) == 1 else ("operation",):
        by_value: dict[str, list[int]] = {}
        for values, rank in zip(shown, ranks, strict=True):
            by_value.setdefault(str(values[aspect]), []).append(rank)
        if len(by_value) > 1:
            said = ", ".join(f"{value} on {_ranks(who)}" for value, who in by_value.items())
            parts.append(f"the {aspect}: {said}")
    return (
        f"{descriptors[0]}: the ranks disagree on {'; '.join(parts)}. "
        "Make the same call on every rank."
    )


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks)
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def joined_ranks(offers: Sequence[Offer], ranks: Sequence[int]) -> list[int]:
    """The ranks that have called join()."""
    kinds = [{descriptor.kind for descriptor in offer.calls} for offer in offers]
    return [rank for rank, called in zip(ranks, kinds, strict=True) if "join" in called]


def resolve(offers: Sequence[Offer], ranks: Sequence[int]) -> Decision:
    """Decide from all ranks' pending calls.

    A rank that has joined goes along with whatever the others have all asked for.
    """
    joined = joined_ranks(offers, ranks)
    calls = {
        rank: {descriptor.key: descriptor for descriptor in offer.calls}
        for rank, offer in zip(ranks, offers, strict=True)
    }
    decision = Decision([], {})
    for key in dict.fromkeys(key for listed in calls.values() for key in listed):
        askers = [rank for rank in ranks if key in calls[rank]]
        others = [rank for rank in ranks if rank not in askers]
        if not set(others) <= set(joined):
            continue
        descriptors = [calls[rank][key] for rank in askers]
        first = descriptors[0]
        if any(descriptor != first for descriptor in descriptors):
            decision.errors[key] = disagreement(descriptors, askers)
        elif others and not KINDS[first.kind].after_join:
            decision.errors[key] = (
                f"{first}: {_ranks(others)} called join() and can't take part in "
                f"{first.kind}; only allreduce and barrier go on after a join()"
            )
        else:
            decision.run.append(first)
    decision.errors.update(_crossed(offers, ranks, joined, {each.key for each in decision.run}))
    stuck = all(offer.waits for offer in offers)
    if stuck and not decision.run and not decision.errors:
        return decision._replace(deadlock=_deadlock(offers, ranks))
    return decision


def _crossed(
    offers: Sequence[Offer], ranks: Sequence[int], joined: Sequence[int], running: Set[str]
) -> dict[str, str]:
    """The errors of calls of several kinds under one name, where all ranks wait for theirs.

    None of them may be `running`: after those the ranks go on.
    """
    errors: dict[str, str] = {}
    active = [rank for rank in ranks if rank not in joined]
    by_name: dict[str, list[Descriptor]] = {}
    for rank, offer in zip(ranks, offers, strict=True):
        for descriptor in offer.calls if rank in active else ():
            waits = descriptor.key in offer.waited and descriptor.key not in running
            if waits and not descriptor.numbered:
                by_name.setdefault(descriptor.name, []).append(descriptor)
    for descriptors in by_name.values():
        if len(descriptors) == len(active) and len({each.kind for each in descriptors}) > 1:
            message = disagreement(descriptors, active)
            errors |= dict.fromkeys((each.key for each in descriptors), message)
    return errors


def _deadlock(offers: Sequence[Offer], ranks: Sequence[int]) -> str:
    doing = (
        f"rank {rank} waits in {' and in '.join(offer.waits)}"
        for rank, offer in zip(ranks, offers, strict=True)
    )
    return (
        f"deadlock: {'; '.join(doing)}. Every rank waits, and no call is made by all of them. Make "
        "the same calls in the same order on every rank."
    )
