"""The calls of one group of ranks: those that are pending, what the ranks agree on, how it runs.

Each rank shows a digest of the calls that it has pending. In the common case all digests are
equal and the calls run at once, in that order. Only when they differ do the ranks exchange the
calls themselves, and decide from these (see `agreement`). In Horovod, ranks compare bits that
stand for calls of earlier steps instead (Romero and others, "Accelerating collective communication
in data parallel training across deep learning frameworks", 2022).
"""

import math
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hvdlite.collectives.choose import choose
from hvdlite.collectives.reduction import neutral
from hvdlite.engine import fusion
from hvdlite.engine.agreement import QUIET, Offer, joined_ranks, resolve
from hvdlite.engine.kinds import KINDS
from hvdlite.engine.timeline import COPY_OUT
from hvdlite.exceptions import HorovodInternalError
from hvdlite.gpu import cuda
from hvdlite.gpu.lane import Lane
from hvdlite.memory.slices import unpack
from hvdlite.request import Descriptor, Request, digest
from hvdlite.runtime.groups import Group

if TYPE_CHECKING:
    from hvdlite.engine.engine import Engine

_nothing = nullcontext()


class Channel:
    """A group's calls on this rank, and the rounds in which the group agrees on them.

    `add` may be called from any thread at any moment. The rest is for the thread that holds
    `lock`, which moves the calls along.
    """

    def __init__(self, engine: "Engine", group: Group):
        self.engine, self.group = engine, group
        self.collectives = choose(group)
        self.lane = Lane(group, self.collectives)
        self.lock = threading.RLock()
        self.pending: dict[str, Request] = {}  # by the key of the call
        self.round = 0
        self.finished = 0  # the last round whose calls have been run
        self.has_news = False  # whether, since the last post, a call came in or a wait began
        self._threshold = group.world.settings.fusion_threshold
        self._posted: dict[str, Request] | None = None
        self._offers: list[Offer] = []  # of the last round; none where the digests were equal
        self._joined: list[int] = []  # as of the last exchange of offers
        self._quiet_until = 0.0

    # Agreeing

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
        self.has_news = True

    def advance(self) -> list[Request]:
        """Take part in the current round as far as possible without waiting.

        Returns the calls to run now, the same on every rank. Calls on which the ranks disagree
        are finished with an error.
        """
        exchange = self.group.exchange
        if self._posted is None:
            wanted = self.has_news or exchange.wanted(self.round + 1)
            if not self.pending or not (wanted or time.monotonic() > self._quiet_until):
                return []
            self._post()
        if not exchange.arrived(self.round):
            return []
        posted, self._posted = self._posted, None
        if exchange.equal(self.round):
            self._offers = []
            for key in posted:
                del self.pending[key]
            return list(posted.values())
        self._quiet_until = time.monotonic() + QUIET / 2
        agreed = self._resolve(posted)
        if not agreed:
            self.finished = self.round
        return agreed

    def _post(self) -> None:
        self.has_news = False  # first, since another thread may add a call at any moment
        self._posted = self.pending.copy()
        self.round += 1
        requests = list(self._posted.values())
        alone = len(requests) == 1 or len(fusion.plan(requests, self._threshold)) == 1
        timeline = self.engine.timeline
        began = timeline.now() if timeline else 0.0
        self.collectives.stage(requests if alone else (), self.round)
        if timeline and self.collectives.staged:
            timeline.copied(requests, began)
        digests = [request.descriptor.digest for request in requests]
        shown = digests[0] if len(digests) == 1 else digest(tuple(digests))
        self.group.exchange.post(self.round, shown)

    def _resolve(self, posted: dict[str, Request]) -> list[Request]:
        # All ranks are here and see that they differ, so they exchange their offers now.
        calls = [tuple(request.descriptor) for request in posted.values()]
        offered = calls, *self.engine.waits.of_group(self.group.set_id)
        self._offers = [
            Offer([Descriptor(*fields) for fields in calls], *waits)
            for calls, *waits in self.group.allgather_object(offered)
        ]
        joined = joined_ranks(self._offers, self.group.ranks)
        if len(joined) < self.group.size:  # else all have: what counts is who was late
            self._joined = joined
        run, errors, deadlock = resolve(self._offers, self.group.ranks)
        if deadlock:
            errors = dict.fromkeys(posted, deadlock)
            self.recount()
        for key, message in errors.items():
            if key in self.pending:
                self._fail(self.pending.pop(key), message)
        return [self.pending.pop(each.key, None) or self._stand_in(each) for each in run]

    def _fail(self, request: Request, message: str) -> None:
        """A call ends with the same error on all ranks."""
        request.finish(HorovodInternalError(message))
        if self.engine.timeline:
            self.engine.timeline.agreed([request])
            self.engine.timeline.finished(request)

    def recount(self) -> None:
        """Make all ranks count their unnamed calls from the same numbers."""
        own = {key: n for key, n in self.engine.counters.items() if key[1] == self.group.set_id}
        for counters in self.group.allgather_object(own):
            self.engine.counters |= counters  # the larger number of each

    # Ranks that have joined

    def _stand_in(self, descriptor: Descriptor) -> Request:
        """The request of a rank that has joined, which leaves the others' result as it is."""
        if descriptor.kind != "allreduce":
            return Request(descriptor)
        on_gpu = descriptor.device == cuda.NAME
        dtype = np.dtype(descriptor.dtype)
        value = neutral(descriptor.op, dtype)
        with cuda.cupy().cuda.Device(self.lane.device) if on_gpu else nullcontext():
            make = (cuda.cupy() if on_gpu else np).full
            arrays = [make(math.prod(shape), value, dtype) for shape in descriptor.shapes]
            stream = cuda.stream(0) if on_gpu else None
        return Request(descriptor, arrays, arrays, is_stand_in=True, stream=stream)

    @property
    def has_stand_ins(self) -> bool:
        """Whether, in the calls to run now, some rank takes part without a call of its own."""
        return bool(self._offers and self._joined)

    def last_to_join(self) -> int:
        """The last rank that joined, once all have."""
        ranks = self.group.ranks
        late = [i for i, rank in enumerate(ranks) if rank not in self._joined]
        times = self.group.exchange.posted_at(self.round)
        self._joined = []
        return ranks[max(late, key=lambda i: (times[i] if times else 0, i))]

    # Running

    def run(self, requests: list[Request]) -> None:
        """Run the calls that `advance` has returned."""
        timeline = self.engine.timeline
        if timeline:
            posted_at = self.group.exchange.posted_at(self.round)
            timeline.agreed(requests, posted_at, self.group.ranks)
        # What was staged before the agreement counts only if all ranks staged the same.
        if self.collectives.staged and not self._offers:
            with self.activity(requests, self.collectives.name, "ALLREDUCE"):
                result = self.collectives.run_staged(requests)
            if len(requests) > 1:
                outputs = [array for request in requests for array in request.outputs]
                with self.activity(requests, COPY_OUT):
                    unpack(result, outputs)
        else:
            for batch in fusion.plan(requests, self._threshold):
                run = KINDS[batch[0].descriptor.kind].run
                if batch[0].stream is None:
                    run(self, self.collectives, *batch)
                else:
                    self.engine.watch_gpu()
                    self.lane.run(batch, partial(run, self), len(self.engine.channels) > 1)
        for request in requests:
            request.finish()
            if timeline:
                timeline.finished(request)

    def activity(self, requests: Sequence[Request], *words: str) -> AbstractContextManager:
        """Shows in the timeline, if there is one, that a part of the work is going on."""
        timeline = self.engine.timeline
        return timeline.activity(requests, *words) if timeline else _nothing

    # Telling

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

    def close(self) -> None:
        """Give back what was made for the group, once all ranks have met again."""
        self.lane.close()
        self.group.close()
