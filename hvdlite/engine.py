"""From a call to its result: request -> agreement -> fusion -> collective.

There is no thread in the background, but for `_run_beside_others`. A rank makes progress inside
its calls: whoever waits for one request moves all pending requests of this process along, in
every group.
"""

import collections
import contextlib
import copy
import functools
import math
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from hvdlite import fusion, gpu, waiting
from hvdlite.agreement import Agreement
from hvdlite.alone import run_alone
from hvdlite.collectives import choose
from hvdlite.collectives.adasum import adasum, check_size
from hvdlite.collectives.nccl import NCCLCollectives
from hvdlite.exceptions import HorovodInternalError
from hvdlite.groups import Group
from hvdlite.reduction import Finish, multiply
from hvdlite.request import ADASUM, Descriptor, Request
from hvdlite.shared_memory import Segment
from hvdlite.stall import wait_until
from hvdlite.status import broken_message, where_in_users_code
from hvdlite.timeline import Timeline
from hvdlite.world import World

_nothing = nullcontext()
_SPINS = 300  # looks at the other ranks before the core is yielded: some tens of microseconds


class Channel:
    """What the engine keeps for one group: the agreement, and how its bytes move."""

    def __init__(self, group: Group, failed: Callable[[Request, str], None]):
        self.group = group
        self.collectives = choose(group)
        self.agreement = Agreement(group, self.collectives.stage, self._stand_in, failed)
        self.lock = threading.RLock()  # one thread at a time moves a group's calls along
        # Buffers by the name of their allocation, for a rank that takes part after its join().
        # The last ones are kept for a rank whose optimizer is gone by then.
        self.buffers: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()
        self.kept: collections.deque[Segment] = collections.deque(maxlen=8)

    def _stand_in(self, what: Descriptor) -> Request:
        """The request of a rank that has joined: zeros, which leave the others' sum as it is."""
        if what.name in self.buffers:
            row = self.buffers[what.name]
            rows = [array.view(what.dtype) for array in row.rows]
            rows[row.index][:] = 0
            return Request(what, rows=rows)
        if what.kind != "allreduce":
            return Request(what)
        on_gpu = what.device == gpu.NAME
        arrays = [
            (gpu.cupy() if on_gpu else np).zeros(math.prod(s), what.dtype) for s in what.shapes
        ]
        return Request(what, arrays, arrays, stream=gpu.stream(0) if on_gpu else None)

    @functools.cached_property
    def on_gpu(self) -> "Channel | None":
        """This channel on NCCL; None, on every rank, where it can't be had. Collective."""
        collectives = NCCLCollectives.create(self.group)
        twin = copy.copy(self)
        twin.collectives = collectives
        return twin if collectives else None


class Engine:
    """Runs the collectives of this process. Safe to call from several threads."""

    def __init__(self, world: World):
        self.world = world
        self.lock = threading.RLock()
        self.broken: str | None = None
        self.timeline: Timeline | None = None
        self._counters: collections.Counter[tuple[str, int]] = collections.Counter()
        self.channels: dict[int, Channel] = {}
        if world.comm is not None:
            self.add_group(0, Group(world, world.comm, list(range(world.size))))

    def add_group(self, number: int, group: Group) -> None:
        """Make the ranks of a group able to talk; they must all do it together."""
        self.channels = {**self.channels, number: Channel(group, self._fail)}

    def remove_group(self, number: int) -> None:
        """Forget a group. A call that is still under way there ends with an error."""
        channel = self.channels.get(number)
        self.channels = {key: each for key, each in self.channels.items() if key != number}
        for request in list(channel.agreement.pending.values()) if channel else []:
            error = HorovodInternalError(f"{request.descriptor}: its process set was removed")
            request.finish(error)

    # Calls

    def name(self, kind: str, name: str | None = None, group: int = 0) -> str:
        """The full name of a call; without one, the next number of its kind in its group.

        Programs that make the same calls in the same order so agree on the names.
        """
        if name is not None:
            return f"{kind}.{name}"
        with self.lock:
            self._counters[kind, group] += 1
            return f"{kind}.noname.{self._counters[kind, group]}"

    def submit(self, request: Request, group: int = 0) -> Request:
        """Start a request; it makes progress in `poll` and `wait`.

        Raises HorovodInternalError if the ranks have fallen out of step before, and ValueError
        for a name that is still under way.
        """
        channel = self.channels.get(group)
        if channel is None:
            if self.timeline:
                self.timeline.negotiate(request)
                self.timeline.agreed([request])
            with request.stream or _nothing:
                run_alone(request)
            if self.timeline:
                self.timeline.finished(request)
            return request
        if request.descriptor.op == ADASUM:
            check_size(channel.group.size, str(request.descriptor))
        with self.lock:
            self._check_broken()
            channel.agreement.add(request)
            if self.timeline:
                self.timeline.negotiate(request)
        return request

    def poll(self, request: Request, group: int = 0) -> bool:
        """Move things along without waiting; whether the request is done."""
        if not request.done:
            try:
                self.progress()
                if not request.done:
                    missing = self.channels[group].agreement.missing(request.descriptor.name)
                    self.world.status.check(request.descriptor, missing)
            except BaseException as error:
                self._give_up(request, error)
                raise
        return request.done

    def wait(self, request: Request, group: int = 0) -> None:
        """Wait for a request. Raises its error, on every rank the same.

        An interrupt ends the wait on this rank and, with an error, on all others.
        """
        waiting.arrived()  # signals from before this wait were for somebody else
        try:
            if not request.done:
                self.progress()
            while not request.done:
                agreement = self.channels[group].agreement
                wait_until(
                    partial(self._advanced, request, agreement, agreement.round),
                    self.channels[group].group,
                    request.descriptor,
                    partial(agreement.missing, request.descriptor.name),
                    agreement.titles,
                    _SPINS,
                )
        except BaseException as error:
            self._give_up(request, error)
            raise
        if request.error is not None:
            raise request.error

    def exchange(self, name: str, item: Any, group: int = 0, kind: str = "exchange") -> list[Any]:
        """Every rank's object (picklable), in rank order; all ranks must call it.

        With kind="survey" it goes on after a join(), which counts as None.
        """
        request = self.submit(Request(Descriptor(kind, name), item=item), group)
        self.wait(request, group)
        return request.result

    def _advanced(self, request: Request, agreement: Agreement, seen: int) -> bool:
        """Move things along; whether the request is done, or a join's round is over.

        After a join() the others go on for long, which is no stall.
        """
        if not request.done:
            self.progress()
        joins = request.descriptor.kind == "join"
        return request.done or (joins and agreement.round != seen)

    # Progress

    def progress(self) -> None:
        """Take every group's calls one step further, but for those another thread is busy with."""
        self._check_broken()
        for channel in self.channels.values():
            if not channel.lock.acquire(blocking=False):
                continue
            requests: list[Request] = []
            try:
                requests = channel.agreement.advance()
                if requests:
                    self._run_beside_others(channel, requests)
            except BaseException as error:
                for request in [*requests, *channel.agreement.pending.values()]:
                    self._give_up(request, error)  # the first one counts
                raise
            finally:
                channel.lock.release()

    def _run_beside_others(self, channel: Channel, requests: list[Request]) -> None:
        """Run agreed calls while a helper thread, if need be, moves the other groups along.

        Two ranks that are in two groups may begin the groups' collectives in different orders;
        each would wait for the other inside of one, if the other one stood still meanwhile.
        """
        if not [c for c in self.channels.values() if c is not channel and c.agreement.pending]:
            self._run(channel, requests)
            return
        over = threading.Event()
        helper = threading.Thread(target=self._help, args=(over,), daemon=True)
        helper.start()
        try:
            self._run(channel, requests)
        finally:
            over.set()
            helper.join()

    def _help(self, over: threading.Event) -> None:
        with contextlib.suppress(Exception):  # `progress` has told everybody
            while not over.wait(0.0005):
                self.progress()

    def _run(self, channel: Channel, requests: list[Request]) -> None:
        collectives, agreement = channel.collectives, channel.agreement
        if self.timeline:
            posted_at = channel.group.exchange.posted_at(agreement.round)
            self.timeline.agreed(requests, posted_at, channel.group.ranks)
        # What was staged before the agreement counts only if all ranks staged the same.
        if agreement.at_once and collectives.staged:
            with self._activity(requests, collectives.name, "ALLREDUCE"):
                collectives.run_staged(requests)
        else:
            for batch in fusion.plan(requests, self.world.settings.fusion_threshold):
                run = self._run_batch if batch[0].stream is None else self._run_on_gpu
                run(channel, batch)
        for request in requests:
            request.finish()
            if self.timeline:
                self.timeline.finished(request)

    def _run_batch(self, channel: Channel, batch: list[Request]) -> None:
        kind = batch[0].descriptor.kind
        if kind in ("allreduce", "broadcast"):
            getattr(self, f"_run_{kind}")(channel, batch)
        else:  # the only one of its batch
            getattr(self, f"_run_{kind}")(channel, *batch)

    def _run_on_gpu(self, channel: Channel, batch: list[Request]) -> None:
        """Run calls on a GPU's arrays: on NCCL, or else with copies in host memory."""
        with batch[0].inputs[0].device, batch[0].stream as stream:
            others = {request.stream for request in batch[1:]} - {stream}
            for other in others:
                stream.wait_event(other.record())
            if NCCLCollectives.can(batch[0].descriptor) and channel.on_gpu:
                channel.on_gpu.collectives.check_device(batch[0])
                self._run_batch(channel.on_gpu, batch)
            else:
                copies = [gpu.in_host_memory(request) for request in batch]
                self._run_batch(channel, copies)
                for request, copy_ in zip(batch, copies, strict=True):
                    gpu.take_results(request, copy_)
            for other in others:
                other.wait_event(stream.record())

    def _activity(self, requests: list[Request], *words: str) -> AbstractContextManager:
        """Shows in the timeline, if there is one, that a part of the work is going on."""
        return self.timeline.activity(requests, *words) if self.timeline else _nothing

    def _run_allreduce(self, channel: Channel, batch: list[Request]) -> None:
        what, algorithm = batch[0].descriptor, channel.collectives.name
        if batch[0].rows is not None:
            # The others may read this rank's row since the agreement, so that it can't be scaled
            # any more: both factors are applied to the sum.
            finish = Finish(what.op, what.prescale * what.postscale, channel.group.size)
            if not channel.agreement.at_once:
                # A rank that has joined clears its row only now: wait for it.
                channel.group.allgather_numbers([0])
            with self._activity(batch, algorithm, "ALLREDUCE"):
                channel.collectives.allreduce_rows(batch[0].rows, what.op, finish)
            return
        finish = Finish(what.op, what.postscale, channel.group.size)
        inputs = [array for request in batch for array in request.inputs]
        outputs = [array for request in batch for array in request.outputs]
        buffer = outputs[0]
        if len(outputs) > 1:
            buffer = np.empty_like(buffer, shape=(sum(len(array) for array in outputs),))
        with self._activity(batch, "MEMCPY_IN_FUSION_BUFFER"):
            if len(outputs) > 1 or inputs[0] is not buffer:
                fusion.pack(inputs, buffer)
            multiply(buffer, what.prescale)
        with self._activity(batch, "ADASUM" if what.op == ADASUM else algorithm, "ALLREDUCE"):
            if what.op == ADASUM:
                adasum(channel.collectives, buffer, [len(array) for array in outputs])
                finish(buffer)
            else:
                channel.collectives.allreduce(buffer, what.op, finish)
        if len(outputs) > 1:
            with self._activity(batch, "MEMCPY_OUT_FUSION_BUFFER"):
                fusion.unpack(buffer, outputs)

    def _run_broadcast(self, channel: Channel, batch: list[Request]) -> None:
        with channel.collectives.together():
            for request in batch:
                root = channel.group.ranks.index(request.descriptor.root)
                channel.collectives.broadcast(request.outputs[0], root)

    def _run_allgather(self, channel: Channel, request: Request) -> None:
        """The result: all ranks' elements, and each rank's number of rows."""
        rows = channel.group.allgather_numbers(request.item)[:, 0]
        row = math.prod(request.descriptor.shapes[0])
        counts = (rows * row).tolist()
        request.result = channel.collectives.allgather(request.inputs[0], counts), rows

    def _run_alltoall(self, channel: Channel, request: Request) -> None:
        """The result: the elements received, and the number of rows from each rank."""
        splits = channel.group.allgather_numbers(request.item)
        row, mine = math.prod(request.descriptor.shapes[0]), channel.group.index
        send, receive = (splits[mine] * row).tolist(), (splits[:, mine] * row).tolist()
        data = channel.collectives.alltoall(request.inputs[0], send, receive)
        request.result = data, splits[:, mine]

    def _run_reducescatter(self, channel: Channel, request: Request) -> None:
        """The result: this rank's rows of the reduced tensor; the first ranks get one more."""
        what, size = request.descriptor, channel.group.size
        rows, *row = what.shapes[0]
        counts = [(rows // size + (i < rows % size)) * math.prod(row) for i in range(size)]
        data = request.inputs[0]
        if what.prescale != 1.0:
            data = data.copy()
            multiply(data, what.prescale)
        finish = Finish(what.op, what.postscale, size)
        request.result = channel.collectives.reducescatter(data, counts, what.op, finish)

    def _run_allocate(self, channel: Channel, request: Request) -> None:
        """The result: shared memory with a row for each rank, or None."""
        segment = request.result = channel.collectives.allocate(request.descriptor.shapes[0][0])
        if segment is not None:
            channel.buffers[request.descriptor.name] = segment
            channel.kept.append(segment)

    def _run_join(self, channel: Channel, request: Request) -> None:
        """All ranks have joined. The result: the last of them."""
        request.result = channel.agreement.last_to_join()
        # Ranks that joined early have made fewer calls: count on from the same numbers.
        for counters in channel.group.allgather_object(self._counters):
            self._counters |= counters  # the larger number of each

    def _run_exchange(self, channel: Channel, request: Request) -> None:
        request.result = channel.group.allgather_object(request.item)

    def _run_barrier(self, channel: Channel, request: Request) -> None:
        """Agreeing on it was all there is to do; what follows for process sets is in basics.py."""

    _run_survey = _run_exchange
    _run_add_process_set = _run_remove_process_set = _run_barrier

    # Trouble

    def _fail(self, request: Request, message: str) -> None:
        """The ranks disagree on a call, which so ends with the same error on all of them."""
        request.finish(HorovodInternalError(message))
        if self.timeline:
            self.timeline.agreed([request])
            self.timeline.finished(request)

    def _check_broken(self) -> None:
        if self.broken is not None:
            raise HorovodInternalError(self.broken)

    def _give_up(self, request: Request, error: BaseException) -> None:
        """A wait ends without its result: the ranks are out of step, and all must learn it."""
        with self.lock:
            if self.broken is not None:
                return
            if isinstance(error, HorovodInternalError):
                reason = f"gave up {request.descriptor}: {error}"
                self.broken = str(error)
            else:
                kind = "was interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                detail = "" if isinstance(error, KeyboardInterrupt) else f" with {error!r}"
                reason = f"{kind} in {request.descriptor}{detail} at {where_in_users_code()}"
                self.broken = broken_message("this rank", reason)
            if self.world.status.broken_by() is None:
                self.world.status.break_off(reason)
