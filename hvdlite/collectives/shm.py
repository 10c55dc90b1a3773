"""All ranks of one host reduce in shared memory: no message, and no copy beyond the buffer.

Each rank owns one slice of the tensor. It reads that slice of every rank's buffer, reduces it and
writes the result into all of them. That is scatter-reduce and allgather of the ring in one pass,
each at the speed of memory.

A tensor that lives elsewhere goes through a *stage*, a row of shared memory for each rank. Small
tensors are staged before the ranks agree, so that the agreement's single exchange is all the
synchronization they need. Large ones go through the stage in chunks that fit the core's cache.
"""

from collections.abc import Sequence

import numpy as np

from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import BLOCK_BYTES, Finish, multiply, reduce_into
from hvdlite.memory import shared_memory
from hvdlite.memory.slices import even_slices, pack, slices_of
from hvdlite.request import ADASUM, Request
from hvdlite.runtime.groups import Group

STAGE_BYTES = 1 << 19
# Up to this size it is cheaper that each rank reduces the whole tensor than to wait once more.
REDUCE_ALONE_BYTES = 1 << 15


class SharedMemoryCollectives(Collectives):
    """Reductions and allgather in shared memory."""

    name = "shm"

    def __init__(self, group: Group, stages: Sequence[shared_memory.Segment]):
        super().__init__(group)
        self._stages = [stage.rows for stage in stages]
        self._views: dict[tuple, list[np.ndarray]] = {}

    @classmethod
    def create(cls, group: Group) -> "SharedMemoryCollectives | None":
        """None, on every rank, if the memory can't be had."""
        stages = [group.allocate(STAGE_BYTES) for _ in range(2)] if group.shared else [None]
        return None if None in stages else cls(group, stages)

    # Large tensors and tensors in shared memory

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        chunk = STAGE_BYTES // buffer.itemsize
        for number, start in enumerate(range(0, len(buffer), chunk)):
            piece = buffer[start : start + chunk]
            rows = self._rows(number & 1, buffer.dtype, len(piece))
            rows[self.group.index][:] = piece
            self.group.sync("allreduce")
            # Whoever comes here has also left the chunk before this one, so that its half of
            # the stage may be written again.
            self._reduce_slice(rows, op, finish)
            self.group.sync("allreduce")
            self._collect(rows, piece)
        self.group.sync("allreduce")  # the stage is free again

    def allreduce_rows(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        index, block = self.group.index, BLOCK_BYTES // rows[0].itemsize
        mine = even_slices(len(rows[0]), self.group.size)[index]
        for start in range(mine.start, mine.stop, block):  # still in the cache when it is copied
            piece = slice(start, min(start + block, mine.stop))
            parts = [row[piece] for row in rows]
            reduce_into(parts[index], parts, op, finish)
            for i, part in enumerate(parts):
                if i != index:
                    part[:] = parts[index]
        self.group.sync("allreduce")

    def allocate(self, row_bytes: int) -> shared_memory.Segment | None:
        return self.group.allocate(row_bytes)

    # The two halves of an allreduce

    def reducescatter(
        self, data: np.ndarray, counts: Sequence[int], op: int, finish: Finish
    ) -> np.ndarray:
        size, index = self.group.size, self.group.index
        block = STAGE_BYTES // data.itemsize // size
        out = np.empty(counts[index], dtype=data.dtype)
        # Each chunk has a block of every rank's stretch, so that all have work to do.
        for number, done in enumerate(range(0, max(counts), block)):
            rows = self._rows(number & 1, data.dtype, block * size)
            for rank, stretch in enumerate(slices_of(counts)):
                piece = data[stretch][done : done + block]
                rows[index][rank * block :][: len(piece)] = piece
            self.group.sync("reducescatter")
            mine = out[done : done + block]
            parts = [row[index * block :][: len(mine)] for row in rows]
            reduce_into(mine, parts, op, finish)
        self.group.sync("reducescatter")
        return out

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        block = STAGE_BYTES // part.itemsize
        gathered = np.empty(sum(counts), dtype=part.dtype)
        for number, done in enumerate(range(0, max(counts), block)):
            rows = self._rows(number & 1, part.dtype, block)
            piece = part[done : done + block]
            rows[self.group.index][: len(piece)] = piece
            self.group.sync("allgather")
            for row, stretch in zip(rows, slices_of(counts), strict=True):
                piece = gathered[stretch][done : done + block]
                piece[:] = row[: len(piece)]
        self.group.sync("allgather")
        return gathered

    # Small tensors

    def stage(self, batch: Sequence[Request], number: int) -> None:
        self.staged = ()
        if not batch:
            return
        first, descriptor = batch[0], batch[0].descriptor
        if descriptor.kind != "allreduce" or descriptor.op == ADASUM:
            return
        if first.shared_rows is not None or first.stream is not None:
            return
        arrays = [array for request in batch for array in request.inputs]
        total = sum(map(len, arrays))
        if 0 < total * arrays[0].itemsize <= STAGE_BYTES:
            self.staged = self._rows(number & 1, arrays[0].dtype, total)
            mine = self.staged[self.group.index]
            pack(arrays, mine)
            multiply(mine, descriptor.prescale)

    def run_staged(self, batch: Sequence[Request]) -> np.ndarray:
        descriptor, rows = batch[0].descriptor, self.staged
        outputs = [array for request in batch for array in request.outputs]
        finish = Finish(descriptor.op, descriptor.postscale, self.group.size)
        result = outputs[0] if len(outputs) == 1 else np.empty_like(rows[0])
        if rows[0].nbytes <= REDUCE_ALONE_BYTES:
            reduce_into(result, rows, descriptor.op, finish)
        else:
            self._reduce_slice(rows, descriptor.op, finish)
            self.group.sync("allreduce")
            self._collect(rows, result)
        return result

    # Parts

    def _rows(self, half: int, dtype: np.dtype, count: int) -> list[np.ndarray]:
        """Every rank's row of one half of the stage, as `count` elements of `dtype`."""
        key = (half, dtype, count)
        rows = self._views.get(key)
        if rows is None:
            if len(self._views) > 1000:
                self._views.clear()
            nbytes = count * dtype.itemsize
            rows = self._views[key] = [row[:nbytes].view(dtype) for row in self._stages[half]]
        return rows

    def _reduce_slice(self, rows: Sequence[np.ndarray], op: int, finish: Finish) -> None:
        """Reduce this rank's slice of all rows into its own row."""
        mine = even_slices(len(rows[0]), self.group.size)[self.group.index]
        reduce_into(rows[self.group.index][mine], [row[mine] for row in rows], op, finish)

    def _collect(self, rows: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Copy every rank's reduced slice from its own row."""
        for row, piece in zip(rows, even_slices(len(out), self.group.size), strict=True):
            out[piece] = row[piece]
