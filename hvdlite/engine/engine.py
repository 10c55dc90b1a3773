"""From a call to its result: request -> agreement -> fusion -> collective.

There is no thread in the background, but for `_run_beside_others`. A rank makes progress inside
its calls: whoever waits for one request moves all pending requests of this process along, in
every group.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import FrameType
from typing import Any

from hvdlite.collectives.adasum import check_size
from hvdlite.engine.channel import Channel
from hvdlite.engine.kinds import KINDS
from hvdlite.engine.timeline import Timeline
from hvdlite.engine.waits import Waits
from hvdlite.exceptions import HorovodInternalError
from hvdlite.gpu import cuda, watchdog
from hvdlite.request import ADASUM, Descriptor, Request
from hvdlite.runtime.groups import Group
from hvdlite.runtime.world import World
from hvdlite.waiting.status import broken_message, where_in_users_code
from hvdlite.waiting.wait import wait_until

_SPINS = 300  # looks at the other ranks before the core is yielded: some tens of microseconds


def _removed(request: Request) -> HorovodInternalError:
    return HorovodInternalError(f"{request.descriptor}: its process set was removed")


class Engine:
    """Runs the collectives of this process. Safe to call from several threads.

    A group is named by its process set's number, `set_id`.
    """

    def __init__(self, world: World):
        self.world = world
        self.lock = threading.RLock()
        self.broken: str | None = None
        self.timeline: Timeline | None = None
        self.waits = Waits()
        # By kind and set_id: how many calls without a name there were.
        self.counters: collections.Counter[tuple[str, int]] = collections.Counter()
        self.channels: dict[int, Channel] = {}
        self._alone: set[int] = set()  # sets of this rank only
        self._watches_gpu = False
        world.status.own_progress = self._progress_of_groups
        self.add_group(0, world.comm, list(range(world.size)))

    def add_group(self, set_id: int, comm: Any, ranks: list[int]) -> None:
        """Make the ranks of a process set able to talk; they must all do it together.

        `comm` is their communicator, which becomes the engine's; None for a single rank.
        """
        if comm is None:
            self._alone.add(set_id)
        else:
            channel = Channel(self, Group(self.world, comm, ranks, set_id))
            self.channels = {**self.channels, set_id: channel}

    def remove_group(self, set_id: int) -> None:
        """Forget a process set. A call that is still under way there ends with an error."""
        self._alone.discard(set_id)
        channel = self.channels.get(set_id)
        self.channels = {key: each for key, each in self.channels.items() if key != set_id}
        if channel is not None:
            for request in list(channel.pending.values()):
                request.finish(_removed(request))
            channel.lane.drain()
            channel.close()

    def close(self, reason: str) -> None:
        """The end: every later call raises HorovodInternalError with the reason."""
        for channel in self.channels.values():
            channel.lane.drain()  # the others may still need this rank's part
        self.broken = reason
        progress = self._progress_of_groups()
        self.world.status.own_progress = lambda: progress  # this engine's memory goes with it
        for channel in self.channels.values():
            channel.close()

    # Calls

    def next_name(self, kind: str, set_id: int = 0) -> str:
        """The name of a call without one: the next number of its kind in its process set.

        Programs that make the same calls in the same order so agree on the names.
        """
        with self.lock:
            self.counters[kind, set_id] += 1
            return f"noname.{self.counters[kind, set_id]}"

    def start(
        self, kind: str, name: str | None, set_id: int, make: Callable[[str], list[Request]]
    ) -> list[Request]:
        """Start the requests that `make` gives for the call's name, or its number without one.

        An interrupt in the middle leaves this rank's numbers ahead of the others', which all ranks
        must learn. Raises what `submit` does.
        """
        try:
            requests = make(self.next_name(kind, set_id) if name is None else name)
            self.submit(requests, set_id)
        except KeyboardInterrupt as error:
            if set_id in self.channels:
                self.give_up(Descriptor(kind, name or "without a name"), error)
            raise
        return requests

    def call(
        self,
        kind: str,
        name: str | None = None,
        set_id: int = 0,
        shapes: tuple = ((),),
        payload: Any = None,
    ) -> Request:
        """Make a call that has no tensor, and wait for it.

        `payload` (picklable) is this rank's object in kinds that exchange them, whose result is
        the list of all ranks', in rank order. `shapes` must be the same on all ranks.
        """

        def make(own: str) -> list[Request]:
            descriptor = Descriptor(kind, own, shapes=shapes, numbered=name is None)
            return [Request(descriptor, payload=payload)]

        (request,) = self.start(kind, name, set_id, make)
        self.wait(request)
        return request

    def submit(self, requests: Sequence[Request], set_id: int = 0) -> None:
        """Start requests; they make progress in `poll` and `wait`.

        Raises HorovodInternalError if the ranks have fallen out of step before, and ValueError,
        and starts none, for a name that is still under way or a process set that is not in use.
        """
        channel = self.channels.get(set_id)
        if channel is None:
            self._run_alone(requests, set_id)
            return
        for request in requests:
            request.set_id = set_id
            if request.descriptor.op == ADASUM:
                check_size(channel.group.size, str(request.descriptor))
        self.waits.callers.add(threading.get_ident())
        if requests and requests[0].stream is not None and len(self.channels) > 1:
            for request in requests:  # another group's call may come into its stream before it runs
                request.event = cuda.ready(request)
        with self.lock:
            self._check_broken()
            channel.add(requests)
            if self.timeline:
                for request in requests:
                    self.timeline.negotiate(request)

    def _run_alone(self, requests: Sequence[Request], set_id: int) -> None:
        if set_id not in self._alone:
            raise ValueError(f"this rank is in no process set with process_set_id={set_id}")
        for request in requests:
            if self.timeline:
                self.timeline.negotiate(request)
                self.timeline.agreed([request])
            on_gpu = request.stream is not None
            here = request.inputs[0].device if on_gpu else nullcontext()
            with here, request.stream or nullcontext():
                request.result = KINDS[request.descriptor.kind].alone(request)
            request.finish()
            if self.timeline:
                self.timeline.finished(request)

    def poll(self, request: Request) -> bool:
        """Move things along without waiting; whether the request is done.

        On a GPU, "done" means that the call is in its stream's queue.
        """
        if not request.done:
            self.waits.callers.add(threading.get_ident())
            try:
                self.progress()
                if not request.done:
                    missing = self.channels[request.set_id].missing(request)
                    self.world.status.check(request.descriptor, missing)
            except BaseException as error:
                self.give_up(request.descriptor, error)
                raise
        return request.done

    def wait(self, request: Request) -> None:
        """Wait for a request. Raises its error, on every rank the same.

        An interrupt ends the wait on this rank and, with an error, on all others. On a GPU, the
        wait ends when the call is in the GPU's queue, and the caller's current stream waits for it.
        """
        try:
            if not request.done:
                self.progress()
            if not request.done:
                self._wait(request)
        except BaseException as error:
            self.give_up(request.descriptor, error)
            raise
        if request.error is not None:
            raise request.error
        if request.stream is not None:
            cuda.settle(request)

    def _wait(self, request: Request) -> None:
        # Most waits end here, before it pays to write down who waits for what.
        for _ in range(0 if self.world.crowded else _SPINS):
            self.progress()
            if request.done:
                return
        self.waits.begin(request.descriptor, request.set_id)
        try:
            while not request.done:
                channel = self.channels.get(request.set_id)
                if channel is None:
                    raise _removed(request)
                channel.has_news = True  # this rank waits now
                wait_until(
                    partial(self._advanced, request, channel, channel.round),
                    channel.group,
                    request.descriptor,
                    partial(channel.missing, request),
                    channel.titles,
                    spins=0,
                )
        finally:
            self.waits.end()

    def _advanced(self, request: Request, channel: Channel, seen: int) -> bool:
        """Move things along; whether the request is done, or a join's round is over.

        After a join() the others go on for long, which is no stall.
        """
        if not request.done:
            self.progress()
        joins = request.descriptor.kind == "join"
        return request.done or (joins and channel.round != seen)

    # Progress

    def progress(self) -> None:
        """Take every group's calls one step further, but for those another thread is busy with."""
        self._check_broken()
        for channel in self.channels.values():
            if not channel.lock.acquire(blocking=False):
                continue
            requests: list[Request] = []
            try:
                requests = channel.advance()
                if requests:
                    if len(self.channels) > 1 and self._others_pending(channel):
                        self._run_beside_others(channel, requests)
                    else:
                        channel.run(requests)
                    channel.finished = channel.round
            except BaseException as error:
                for request in [*requests, *channel.pending.values()]:
                    self.give_up(request.descriptor, error)  # the first one counts
                if requests and requests[0].stream is not None and isinstance(error, Exception):
                    raise HorovodInternalError(self.broken) from error  # of CUDA, or NCCL
                raise
            finally:
                channel.lock.release()

    def _others_pending(self, channel: Channel) -> bool:
        return any(each.pending for each in self.channels.values() if each is not channel)

    def _run_beside_others(self, channel: Channel, requests: list[Request]) -> None:
        """Run agreed calls while a helper thread moves the other groups along.

        Two ranks that are in two groups may begin the groups' collectives in different orders;
        each would wait for the other inside of one, if the other one stood still meanwhile.
        """
        over = threading.Event()
        helper = threading.Thread(target=self._help, args=(over,), daemon=True)
        helper.start()
        try:
            channel.run(requests)
        except BaseException as error:
            self.give_up(requests[0].descriptor, error)  # the helper may wait for other ranks
            raise
        finally:
            over.set()
            helper.join()

    def _help(self, over: threading.Event) -> None:
        with contextlib.suppress(Exception):  # `progress` has told everybody
            while not over.wait(0.0005):
                self.progress()

    def watch_gpu(self) -> None:
        """From now on calls run on a GPU, and wait there in foreign code."""
        if not self._watches_gpu:
            self._watches_gpu = True
            watchdog.watch(self)

    def _progress_of_groups(self) -> Mapping[int, tuple[int, int]]:
        return {set_id: (each.round, each.finished) for set_id, each in self.channels.items()}

    # Trouble

    def _check_broken(self) -> None:
        if self.broken is not None:
            raise HorovodInternalError(self.broken)

    def give_up(
        self, descriptor: Descriptor, error: BaseException, frame: FrameType | None = None
    ) -> None:
        """A wait ends without its result: the ranks are out of step, and all must learn it.

        `frame` is where the wait was, if not here.
        """
        with self.lock:
            if self.broken is not None:
                return
            if isinstance(error, HorovodInternalError):
                reason = f"gave up {descriptor}: {error}"
                self.broken = str(error)
            else:
                kind = "was interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                detail = "" if isinstance(error, KeyboardInterrupt) else f" with {error!r}"
                reason = f"{kind} in {descriptor}{detail} at {where_in_users_code(frame)}"
                self.broken = broken_message("this rank", reason)
            if self.world.status.broken_by() is None:
                self.world.status.break_off(reason)
        for channel in self.channels.values():
            channel.lane.abort()
