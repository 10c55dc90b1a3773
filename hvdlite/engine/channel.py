"""What the engine keeps for one group of ranks."""

import math
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from hvdlite.collectives.choose import choose
from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import neutral
from hvdlite.engine import fusion
from hvdlite.engine.agreement import Agreement
from hvdlite.engine.waits import Waits
from hvdlite.gpu import cuda
from hvdlite.gpu.nccl import NCCLCollectives
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
            stand_in=_stand_in,
            failed=failed,
            waits=partial(waits.of_group, group.set_id),
            recount=partial(recount, group),
        )
        self._threshold = group.world.settings.fusion_threshold
        self._on_gpu: Collectives | None = None
        self._asked_for_gpu = False

    def _stage(self, requests: list[Request], number: int) -> None:
        alone = len(requests) == 1 or len(fusion.plan(requests, self._threshold)) == 1
        self.collectives.stage(requests if alone else (), number)

    def collectives_for(self, request: Request) -> Collectives | None:
        """Those that take the request's arrays as they are; None for a GPU's without NCCL.

        Collective at a group's first call on a GPU.
        """
        if request.stream is None:
            return self.collectives
        if not NCCLCollectives.can(request.descriptor):
            return None
        if not self._asked_for_gpu:
            self._on_gpu = NCCLCollectives.create(self.group)
            self._asked_for_gpu = True
        if self._on_gpu is not None:
            self._on_gpu.check_device(request)
        return self._on_gpu


def _stand_in(descriptor: Descriptor) -> Request:
    """The request of a rank that has joined, which leaves the others' result as it is."""
    if descriptor.kind != "allreduce":
        return Request(descriptor)
    on_gpu = descriptor.device == cuda.NAME
    make, dtype = (cuda.cupy() if on_gpu else np).full, np.dtype(descriptor.dtype)
    value = neutral(descriptor.op, dtype)
    arrays = [make(math.prod(shape), value, dtype) for shape in descriptor.shapes]
    stream = cuda.stream(0) if on_gpu else None
    return Request(descriptor, arrays, arrays, is_stand_in=True, stream=stream)
