"""What the engine keeps for one group of ranks."""

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np

from hvdlite.collectives.choose import choose
from hvdlite.collectives.reduction import neutral
from hvdlite.engine import fusion
from hvdlite.engine.agreement import Agreement
from hvdlite.engine.waits import Waits
from hvdlite.gpu import cuda
from hvdlite.gpu.lane import Lane
from hvdlite.request import Descriptor, Request
from hvdlite.runtime.groups import Group


class Channel:
    """What the engine keeps for one group: the agreement, and how its bytes move.

    `lock` is held by the thread that moves the group's calls along.
    """

    def __init__(
        self,
        group: Group,
        failed: Callable[[Request, str], None],
        waits: Waits,
        recount: Callable[[Group], None],
    ):
        self.group = group
        self.collectives = choose(group)
        self.lock = threading.RLock()
        self.agreement = Agreement(
            group,
            before_post=self._stage,
            stand_in=self._stand_in,
            failed=failed,
            waits=partial(waits.of_group, group.set_id),
            recount=partial(recount, group),
        )
        self._threshold = group.world.settings.fusion_threshold
        self.lane = Lane(group)

    def _stage(self, requests: list[Request], number: int) -> None:
        alone = len(requests) == 1 or len(fusion.plan(requests, self._threshold)) == 1
        self.collectives.stage(requests if alone else (), number)

    def close(self) -> None:
        """Give back what was made for the group, once all ranks have met again."""
        self.lane.close()
        self.group.close()

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
