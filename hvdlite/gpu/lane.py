"""How the calls of one group get into the queue of this rank's GPU."""

from collections.abc import Callable
from typing import Any

from hvdlite.collectives.interface import Collectives
from hvdlite.gpu import cuda
from hvdlite.gpu.nccl import NCCLCollectives
from hvdlite.request import Descriptor, Request
from hvdlite.runtime.groups import Group, give_back


class Lane:
    """A group's GPU on this rank, which is that of its first call, and NCCL between them.

    A tensor on another GPU of this process is copied there and back. `run` is for the thread that
    holds the channel's lock; the rest may be called from any.
    """

    def __init__(self, group: Group, on_host: Collectives):
        self._group, self._on_host = group, on_host
        self._device: int | None = None
        self._streams: dict[int, Any] = {}  # of its own, one on each GPU that it has used
        self._asked = False
        self.nccl: NCCLCollectives | None = None

    @property
    def device(self) -> int:
        """The number of the GPU; before the first call a guess, for a rank that has joined."""
        if self._device is not None:
            return self._device
        count = cuda.cupy().cuda.runtime.getDeviceCount()
        return self._group.world.local_rank % count

    def run(
        self,
        batch: list[Request],
        run: Callable[..., None],
        shares: bool,
    ) -> None:
        """Run calls, as `run(collectives, *batch)`, on NCCL, or else with copies in host memory.

        The results are on the GPU of the call's own arrays, and the call's event, or else its
        stream, says when.
        """
        if self._device is None:
            self._device = cuda.number_of(batch[0])
        if nccl := self._collectives_for(batch[0].descriptor):
            self._run_on_gpu(nccl, batch, run, shares)
        else:
            self._run_on_host(batch, run)

    def _run_on_gpu(
        self, nccl: NCCLCollectives, batch: list[Request], run: Callable[..., None], shares: bool
    ) -> None:
        """All calls in one stream.

        NCCL's kernels wait on the GPU for those of the other ranks, which may begin the calls of
        several groups in another order. So where the GPU `shares` its time with other groups,
        each has a stream of its own, which no other group's waits for.
        """
        home, streams = self._device, {request.stream for request in batch}
        away = [cuda.number_of(request) != home for request in batch]
        apart = shares or any(away)
        stream = self._own_stream(home) if apart else batch[0].stream
        with cuda.cupy().cuda.Device(home), stream:
            for request in batch:
                if request.stream is not stream:
                    stream.wait_event(cuda.ready(request))
            here = [
                cuda.moved(request, cuda.to_current) if elsewhere else request
                for request, elsewhere in zip(batch, away, strict=True)
            ]
            run(nccl, *here)
            for request, copies in zip(batch, here, strict=True):
                if copies is not request:
                    cuda.take_results(request, copies)
            if apart or len(streams) > 1:
                done = cuda.record(stream, home)
                for request in batch:
                    request.event = done

    def _run_on_host(self, batch: list[Request], run: Callable[..., None]) -> None:
        """Each call's arrays come and go by the stream that this group has on their GPU."""
        copies = []
        for request in batch:
            number = cuda.number_of(request)
            stream = self._own_stream(number)
            with cuda.cupy().cuda.Device(number), stream:
                stream.wait_event(cuda.ready(request))
                copies.append(cuda.moved(request, cuda.to_host))
        run(self._on_host, *copies)
        for request, copy in zip(batch, copies, strict=True):
            number = cuda.number_of(request)
            stream = self._own_stream(number)
            with cuda.cupy().cuda.Device(number), stream:
                cuda.take_results(request, copy)
                request.event = cuda.record(stream, number)

    def _own_stream(self, number: int) -> Any:
        if number not in self._streams:
            with cuda.cupy().cuda.Device(number):
                self._streams[number] = cuda.cupy().cuda.Stream(non_blocking=True)
        return self._streams[number]

    def _collectives_for(self, descriptor: Descriptor) -> NCCLCollectives | None:
        """NCCL where it can do it. Collective at a group's first call on a GPU."""
        if not NCCLCollectives.can(descriptor):
            return None
        if not self._asked:
            with cuda.cupy().cuda.Device(self._device):
                self.nccl = NCCLCollectives.create(self._group)
            self._asked = True
        return self.nccl

    def drain(self) -> None:
        """Wait until the GPU has done what is in its queue."""
        if self.nccl is not None:
            cuda.cupy().cuda.Device(self._device).synchronize()

    def abort(self) -> None:
        """End what waits on the GPU for other ranks; its results are of no use."""
        if self.nccl is not None:
            self.nccl.abort()

    def close(self) -> None:
        """Give NCCL back, as a group does its communicator."""
        if self.nccl is not None:
            give_back(self.nccl, [])
