"""Allreduce around a ring: scatter-reduce, then allgather.

The ranks stand in a circle and the buffer is cut into as many chunks as there are ranks. At each
step every rank sends one chunk to its right neighbour and receives one from its left.

    scatter-reduce, size-1 steps: what arrives is added to one's own chunk. After the last step
        each rank has one chunk that is complete: rank r has chunk r+1.
    allgather, size-1 steps: the complete chunks travel on around the ring and overwrite.

Each rank sends 2 (size-1)/size times the buffer, however many ranks there are, and that is the
least that any allreduce can do. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009; Gibiansky, "Bringing HPC techniques to deep learning", 2017.
"""

import numpy as np

from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import UFUNCS, Finish
from hvdlite.memory.slices import even_slices


class RingCollectives(Collectives):
    """Allreduce by a ring of messages."""

    name = "ring"

    def reduce(self, work: np.ndarray, op: int, finish: Finish) -> None:
        rank, size = self.group.index, self.group.size
        chunks = [work[piece] for piece in even_slices(len(work), size)]
        arriving = np.empty(max(len(chunk) for chunk in chunks), dtype=work.dtype)

        for step in range(size - 1):  # scatter-reduce
            mine = chunks[(rank - step - 1) % size]
            incoming = arriving[: len(mine)]
            self._pass_on(chunks[(rank - step) % size], incoming)
            UFUNCS[op](incoming, mine, out=mine)

        finish(chunks[(rank + 1) % size])

        for step in range(size - 1):  # allgather
            self._pass_on(chunks[(rank + 1 - step) % size], chunks[(rank - step) % size])

    def _pass_on(self, chunk: np.ndarray, incoming: np.ndarray) -> None:
        """Send a chunk to the right neighbour while one arrives from the left."""
        rank, size = self.group.index, self.group.size
        arriving = self.group.receive(incoming, (rank - 1) % size)
        leaving = self.group.send(chunk, (rank + 1) % size)
        self.group.wait_all(arriving + leaving, "ring allreduce")
