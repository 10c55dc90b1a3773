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
        self._stream: Any = None  # of its own; see `run`
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

        NCCL's kernels wait on the GPU for those of the other ranks, which may begin the calls of
        several groups in another order. So where the GPU `shares` its time with other groups,
        each has a stream of its own, which no other group's waits for.
        """
        if self._device is None:
            self._device = batch[0].inputs[0].data.device_id
        home, streams = self._device, {request.stream for request in batch}
        away = [request.inputs[0].data.device_id != home for request in batch]
        apart = shares or any(away)
        with cuda.cupy().cuda.Device(home):
            if apart and self._stream is None:
                self._stream = cuda.cupy().cuda.Stream(non_blocking=True)
            stream = self._stream if apart else batch[0].stream
            for request in batch:
                if request.stream is not stream:
                    stream.wait_event(cuda.ready(request))
            with stream:
                here = [
                    cuda.moved(request, cuda.to_current) if elsewhere else request
                    for request, elsewhere in zip(batch, away, strict=True)
                ]
                self._run_here(here, run)
                for request, copies in zip(batch, here, strict=True):
                    if copies is not request:
                        cuda.take_results(request, copies)
            if apart or len(streams) > 1:
                done = cuda.record(stream, home)
                for request in batch:
                    request.event = done

    def _run_here(self, batch: list[Request], run: Callable) -> None:
        if collectives := self._collectives_for(batch[0].descriptor):
            run(collectives, *batch)
            return
        copies = [cuda.moved(request, cuda.to_host) for request in batch]
        run(self._on_host, *copies)
        for request, copy in zip(batch, copies, strict=True):
            cuda.take_results(request, copy)

    def _collectives_for(self, descriptor: Descriptor) -> NCCLCollectives | None:
        """NCCL where it can do it. Collective at a group's first call on a GPU."""
        if not NCCLCollectives.can(descriptor):
            return None
        if not self._asked:
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
