"""Do all ranks ask for the same thing?

Each rank shows a digest of the calls that it has pending. In the common case all digests are
equal and the calls run at once, in that order. Only when they differ do the ranks exchange the
calls themselves: what all have asked for runs, in rank 0's order; a call that two ranks describe
differently fails on every rank with the same message; the rest waits for the next round.

Where nothing is left that could run and every rank waits, that is a deadlock, and all calls fail.
"""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hvdlite.engine.kinds import KINDS
from hvdlite.request import Descriptor, Request, digest

if TYPE_CHECKING:
    from hvdlite.runtime.groups import Group

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
    return [rank for rank, some in zip(ranks, kinds, strict=True) if "join" in some]


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


@dataclass(eq=False)
class Agreement:
    """The pending calls of this rank in one group, and the rounds in which the group agrees.

    `add` may be called from any thread at any moment; one thread at a time may `advance`.
    """

    group: "Group"
    before_post: Callable[[list[Request], int], None]
    stand_in: Callable[[Descriptor], Request]  # makes the request of a rank that has joined
    failed: Callable[[Request, str], None]  # called for a request that fails on every rank
    waits: Callable[[], tuple[Sequence[str], Sequence[str]]]  # `Offer.waited` and `Offer.waits`
    recount: Callable[[], None]  # makes all ranks count their unnamed calls from the same numbers
    joined: list[int] = field(default_factory=list)  # as of the last exchange of offers
    pending: dict[str, Request] = field(default_factory=dict)
    round: int = 0
    finished: int = 0  # the last round whose calls have been run
    at_once: bool = False  # whether the last round needed no exchange of offers
    _posted: dict[str, Request] | None = None
    _offers: list[Offer] = field(default_factory=list)
    _has_new: bool = False  # whether a call came in since the last post
    _quiet_until: float = 0.0

    def add(self, requests: Sequence[Request]) -> None:
        """Take calls in; raises ValueError, and takes none, if a name is still under way."""
        new = {}
        for request in requests:
            key = request.descriptor.key
            if key in self.pending:
                raise ValueError(
                    f"{request.descriptor}: a call of that name is still under way on this rank. "
                    "Synchronize it first, or give each call a name of its own."
                )
            new[key] = request
        self.pending.update(new)
        self._has_new = True

    def ask_again(self) -> None:
        """Something has changed besides the calls: this rank waits now."""
        self._has_new = True

    def advance(self) -> list[Request]:
        """Take part in the current round as far as possible without waiting.

        Returns the calls to run now, the same on every rank. Calls on which the ranks disagree
        are finished with an error.
        """
        exchange = self.group.exchange
        if self._posted is None:
            if not self.pending or not self._has_reason_to_post():
                return []
            self._post()
        if not exchange.arrived(self.round):
            return []
        posted, self._posted = self._posted, None
        self.at_once = exchange.equal(self.round)
        if self.at_once:
            self._offers = []
            for key in posted:
                del self.pending[key]
            return list(posted.values())
        self._quiet_until = time.monotonic() + QUIET / 2
        agreed = self._resolve(posted)
        if not agreed:
            self.finished = self.round
        return agreed

    def _has_reason_to_post(self) -> bool:
        wanted = self._has_new or self.group.exchange.wanted(self.round + 1)
        return wanted or time.monotonic() > self._quiet_until

    def _post(self) -> None:
        self._has_new = False  # first, since another thread may add a call at any moment
        self._posted = self.pending.copy()
        self.round += 1
        requests = list(self._posted.values())
        self.before_post(requests, self.round)
        digests = [digest(request.descriptor) for request in requests]
        shown = digests[0] if len(digests) == 1 else digest(tuple(digests))
        self.group.exchange.post(self.round, shown)

    def _resolve(self, posted: dict[str, Request]) -> list[Request]:
        # All ranks are here and see that they differ, so they exchange their offers now.
        calls = [tuple(request.descriptor) for request in posted.values()]
        offered = calls, *self.waits()
        self._offers = [
            Offer([Descriptor(*fields) for fields in calls], *waits)
            for calls, *waits in self.group.allgather_object(offered)
        ]
        joined = joined_ranks(self._offers, self.group.ranks)
        if len(joined) < self.group.size:  # else all have: what counts is who was late
            self.joined = joined
        run, errors, deadlock = resolve(self._offers, self.group.ranks)
        if deadlock:
            errors = dict.fromkeys(posted, deadlock)
            self.recount()
        for key, message in errors.items():
            if key in self.pending:
                self.failed(self.pending.pop(key), message)
        return [self.pending.pop(what.key, None) or self.stand_in(what) for what in run]

    @property
    def has_stand_ins(self) -> bool:
        """Whether, in the calls to run now, some rank takes part without a call of its own."""
        return not self.at_once and bool(self.joined)

    def last_to_join(self) -> int:
        """The last rank that joined, once all have."""
        ranks = self.group.ranks
        late = [i for i, rank in enumerate(ranks) if rank not in self.joined]
        times = self.group.exchange.posted_at(self.round)
        self.joined = []
        return ranks[max(late, key=lambda i: (times[i] if times else 0, i))]

    def titles(self) -> list[str]:
        """The calls that are pending on this rank, as messages name them."""
        return [str(request.descriptor) for request in list(self.pending.values())]

    def missing(self, request: Request) -> list[int]:
        """The ranks, by their number in the world, that have not asked for the call so far."""
        ranks = self.group.ranks
        if self._posted is not None:
            return [ranks[i] for i in self.group.exchange.missing(self.round)]
        return [
            rank
            for rank, offer in zip(ranks, self._offers, strict=False)
            if all(descriptor.key != request.descriptor.key for descriptor in offer.calls)
        ]
