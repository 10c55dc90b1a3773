"""Do all ranks ask for the same thing?

Each rank shows a digest of the calls that it has pending. In the common case all digests are
equal and the calls run at once, in that order. Only when they differ do the ranks exchange the
calls themselves: what all have asked for runs, in rank 0's order; a call that two ranks describe
differently fails on every rank with the same message; the rest waits for the next round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hvdlite.request import Descriptor, Request, digest

if TYPE_CHECKING:
    from hvdlite.groups import Group


def disagreement(descriptors: Sequence[Descriptor], ranks: Sequence[int]) -> str:
    """The message for a call that the ranks describe differently."""
    parts = []
    shown = [descriptor.values() for descriptor in descriptors]
    for aspect in shown[0]:
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


def resolve(
    lists: Sequence[Sequence[Descriptor]], ranks: Sequence[int]
) -> tuple[list[Descriptor], dict[str, str]]:
    """Decide from all ranks' pending calls; every rank comes to the same decision.

    A rank that has joined goes along with whatever the others have all asked for.
    Returns the calls to run, in the order of the first rank that has not joined, and for each
    name on which the ranks disagree the message of its error.
    """
    joined = _joined(lists, ranks)
    active = [rank for rank in ranks if rank not in joined]
    if not active:  # all have: the joins themselves are what is left to run
        active, joined = joined, []
    calls = {
        rank: {descriptor.name: descriptor for descriptor in listed}
        for rank, listed in zip(ranks, lists, strict=True)
    }
    run, errors = [], {}
    for name in calls[active[0]]:
        descriptors = [calls[rank].get(name) for rank in active]
        if None in descriptors:
            continue
        if any(descriptor != descriptors[0] for descriptor in descriptors):
            errors[name] = disagreement(descriptors, active)
        elif joined and descriptors[0].kind not in GOES_ON_AFTER_JOIN:
            errors[name] = (
                f"{descriptors[0]}: {_ranks(joined)} called join() and can't take part in "
                f"{descriptors[0].kind}; only allreduce and barrier go on after a join()"
            )
        else:
            run.append(descriptors[0])
    return run, errors


# What a rank without data can take part in: with zeros, or with nothing.
GOES_ON_AFTER_JOIN = ("allreduce", "allocate", "survey", "barrier")


def _joined(lists: Sequence[Sequence[Descriptor]], ranks: Sequence[int]) -> list[int]:
    """The ranks whose calls tell that they have joined."""
    kinds = [{descriptor.kind for descriptor in calls} for calls in lists]
    return [rank for rank, some in zip(ranks, kinds, strict=True) if "join" in some]


@dataclass(eq=False)
class Agreement:
    """The pending calls of this rank in one group, and the rounds in which the group agrees."""

    group: "Group"
    before_post: Callable[[list[Request], int], None]
    stand_in: Callable[[Descriptor], Request]  # makes the request of a rank that has joined
    failed: Callable[[Request, str], None]  # called for a request on which the ranks disagree
    joined: list[int] = field(default_factory=list)  # as of the last exchange of lists
    pending: dict[str, Request] = field(default_factory=dict)
    round: int = 0
    at_once: bool = False  # whether the last round needed no exchange of lists
    _posted: list[Request] | None = None
    _lists: list[list[Descriptor]] = field(default_factory=list)
    _has_new: bool = False  # whether a call came in since the last post

    def add(self, request: Request) -> None:
        """Take a call in; raises ValueError if one of that name is still under way."""
        name = request.descriptor.name
        if name in self.pending:
            raise ValueError(
                f"{request.descriptor}: a call of that name is still under way on this rank. "
                "Synchronize it first, or give each call a name of its own."
            )
        self.pending[name] = request
        self._has_new = True

    def advance(self) -> list[Request]:
        """Take part in the current round as far as possible without waiting.

        Returns the calls to run now, the same on every rank. Calls on which the ranks disagree
        are finished with an error.
        """
        exchange = self.group.exchange
        if self._posted is None:
            if not self.pending or not (self._has_new or exchange.wanted(self.round + 1)):
                return []
            self._post()
        if not exchange.arrived(self.round):
            return []
        posted, self._posted = self._posted, None
        self.at_once = exchange.equal(self.round)
        if self.at_once:
            self._lists = []
            for request in posted:
                del self.pending[request.descriptor.name]
            return posted
        return self._resolve(posted)

    def _post(self) -> None:
        self._has_new = False  # first, since another thread may add a call at any moment
        self._posted = list(self.pending.values())
        self.round += 1
        self.before_post(self._posted, self.round)
        digests = [digest(request.descriptor) for request in self._posted]
        shown = digests[0] if len(digests) == 1 else digest(tuple(digests))
        self.group.exchange.post(self.round, shown)

    def _resolve(self, posted: list[Request]) -> list[Request]:
        # All ranks are here and see that they differ, so they exchange their lists now.
        mine = [tuple(request.descriptor) for request in posted]
        gathered = self.group.allgather_object(mine)
        self._lists = [[Descriptor(*fields) for fields in calls] for calls in gathered]
        self.joined = _joined(self._lists, self.group.ranks)
        run, errors = resolve(self._lists, self.group.ranks)
        for name, message in errors.items():
            if name in self.pending:
                self.failed(self.pending.pop(name), message)
        return [self.pending.pop(what.name, None) or self.stand_in(what) for what in run]

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

    def missing(self, name: str) -> list[int]:
        """The ranks, by their number in the world, that have not asked for the call so far."""
        ranks = self.group.ranks
        if self._posted is not None:
            return [ranks[i] for i in self.group.exchange.missing(self.round)]
        return [
            rank
            for rank, calls in zip(ranks, self._lists, strict=False)
            if all(descriptor.name != name for descriptor in calls)
        ]
