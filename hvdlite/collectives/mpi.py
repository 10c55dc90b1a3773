"""The MPI library's own allreduce, non-blocking, so that a wait can be interrupted."""

import numpy as np

from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import Finish
from hvdlite.request import AVERAGE, MAX, MIN, PRODUCT, SUM
from hvdlite.runtime import groups


class MPICollectives(Collectives):
    """Works on every network and for every group."""

    name = "mpi"

    def __init__(self, group: groups.Group):
        from mpi4py import MPI

        super().__init__(group)
        self._ops = {SUM: MPI.SUM, AVERAGE: MPI.SUM, MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}
        self._in_place = MPI.IN_PLACE

    def reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        # MPI's logical type has no MIN, MAX, PROD.
        data = work.view(np.uint8) if work.dtype == np.bool_ else work
        call = self.group.comm.Iallreduce
        most = groups.LARGEST_COUNT
        for start in range(0, len(data), most):
            part = data[start : start + most]
            request = self.group.begin(call, self._in_place, part, op=self._ops[op])
            self.group.wait_all([request], "allreduce")
        finish(work)
