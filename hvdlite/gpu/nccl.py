"""NCCL's collectives, through CuPy: GPU memory to GPU memory, on the stream of the call.

A call returns when it is in the stream's queue. The GPU runs it after what is there already, as
it does with every kernel; the host does not wait.
"""

import atexit
import ctypes
import os
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import BFLOAT16, Finish, multiply
from hvdlite.gpu import cuda
from hvdlite.memory.slices import slices_of
from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM, Descriptor
from hvdlite.runtime.groups import Group
from hvdlite.waiting import signals

# NCCL's own end of a communicator waits for the other ranks, so it must not come at a moment that
# the garbage collector picks. They live until they are aborted.
_communicators: set[Any] = set()
_ABORT_TIME = 10.0  # seconds


@atexit.register
def _abort() -> None:
    """Give up all communicators; at exit, and after the ranks have waited for each other there.

    (What is registered first runs last, and this is registered before `init()` is called.)
    """
    for communicator in _communicators:
        communicator.abort()


class NCCLCollectives(Collectives):
    """Takes CuPy arrays where the others take numpy's."""

    name = "nccl"

    def __init__(self, group: Group, communicator: Any):
        super().__init__(group)
        self._communicator = communicator
        self._is_over = self._in_graph = False
        self._nccl = nccl = cuda.cupy().cuda.nccl
        self._kinds = {SUM: nccl.NCCL_SUM, MIN: nccl.NCCL_MIN, MAX: nccl.NCCL_MAX}
        self._kinds |= {PRODUCT: nccl.NCCL_PROD, AVERAGE: nccl.NCCL_AVG}
        self._types = {
            np.dtype(np.int8): nccl.NCCL_INT8,
            np.dtype(np.uint8): nccl.NCCL_UINT8,
            np.dtype(np.int32): nccl.NCCL_INT32,
            np.dtype(np.uint32): nccl.NCCL_UINT32,
            np.dtype(np.int64): nccl.NCCL_INT64,
            np.dtype(np.uint64): nccl.NCCL_UINT64,
            np.dtype(np.float16): nccl.NCCL_FLOAT16,
            BFLOAT16: nccl.NCCL_BFLOAT16,
            np.dtype(np.float32): nccl.NCCL_FLOAT32,
            np.dtype(np.float64): nccl.NCCL_FLOAT64,
        }

    @classmethod
    def create(cls, group: Group) -> "NCCLCollectives | None":
        """None, on every rank, unless each rank of the group has a GPU of its own."""
        cupy = cuda.cupy()
        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        # With NCCL_HOSTID, NCCL takes ranks for those of different hosts, which may share a GPU.
        mine = os.getenv("NCCL_HOSTID"), properties["uuid"]
        told = group.allgather_object((mine, cupy.cuda.nccl.get_unique_id()))
        if len({which for which, _ in told}) < group.size:
            group.world.warn_once(
                "ranks share a GPU, which NCCL does not allow, so tensors on GPUs go through host "
                "memory, which is slower; start one rank for each GPU, and pin each to its own"
            )
            return None
        # Else NCCL connects ranks at the first call of each kind, and is out of reach meanwhile.
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
        signals.watch()
        with signals.undisturbed():
            number = group.size, told[0][1], group.index
            communicator = cupy.cuda.nccl.NcclCommunicator(*number)
        _communicators.add(communicator)
        return cls(group, communicator)

    @staticmethod
    def can(descriptor: Descriptor) -> bool:
        """Whether NCCL has the operation; if not, host memory is the way."""
        complex_product = descriptor.op == PRODUCT and descriptor.dtype.startswith("complex")
        return descriptor.op != ADASUM and not complex_product

    def allreduce(self, buffer: np.ndarray, op: int, finish: Finish) -> None:
        work = buffer
        if buffer.dtype == np.bool_:
            work = buffer.view(np.uint8)
        elif buffer.dtype.kind == "c":
            work = buffer.view(f"f{buffer.itemsize // 2}")
        elif buffer.dtype not in self._types:  # 16 bits, which wrap around as 32 do
            work = buffer.astype(np.int32)
        # NCCL can divide as well, which spares a kernel; but it rounds integers in another way.
        averages = op == AVERAGE and work.dtype.kind not in "iu"
        kind = SUM if op == AVERAGE and not averages else op
        code, at = self._types[work.dtype], work.data.ptr
        self._communicator.allReduce(at, at, work.size, code, self._kinds[kind], self._stream())
        if work.nbytes != buffer.nbytes:
            buffer[:] = work
        multiply(buffer, finish.postscale) if averages else finish(buffer)

    def _stream(self) -> int:
        stream = cuda.cupy().cuda.get_current_stream()
        if stream.is_capturing():
            self._leave_to_graph()
        return stream.ptr

    def _leave_to_graph(self) -> None:
        """Never end the communicator, not even at exit.

        NCCL would wait until no CUDA graph holds its calls, and a script's graph lives until
        after the exit handlers.
        """
        if not self._in_graph:
            self._in_graph = True
            _communicators.discard(self._communicator)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._communicator))

    def abort(self) -> None:
        """End the kernels that wait for other ranks. Any later call fails."""
        if self._is_over:
            return
        self._is_over = True
        _communicators.discard(self._communicator)
        ending = threading.Thread(target=self._communicator.abort, daemon=True)
        ending.start()
        if not self._in_graph:  # else it ends with the graph
            ending.join(_ABORT_TIME)

    def Free(self) -> None:
        """Give up the communicator, under the name that MPI's have, once all ranks have met.

        Nothing is under way by then. One that is in a CUDA graph is left to it.
        """
        if not self._in_graph:
            self.abort()

    @contextmanager
    def together(self):
        """What is started within becomes one kernel."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        data = buffer.data.ptr, buffer.nbytes, self._nccl.NCCL_UINT8
        self._communicator.bcast(*data, root, self._stream())

    def allgather(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        gathered = np.empty_like(part, shape=(sum(counts),))
        with self.together():
            for root, piece in enumerate(slices_of(counts)):
                source, into = part if root == self.group.index else gathered, gathered[piece]
                data = source.data.ptr, into.data.ptr, into.nbytes, self._nccl.NCCL_UINT8
                self._communicator.broadcast(*data, root, self._stream())
        return gathered

    def alltoall(
        self, data: np.ndarray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> np.ndarray:
        received = np.empty_like(data, shape=(sum(receive_counts),))
        with self.together():
            for array, counts, move in (
                (data, send_counts, self._communicator.send),
                (received, receive_counts, self._communicator.recv),
            ):
                for rank, stretch in enumerate(slices_of(counts)):
                    piece = array[stretch]
                    move(piece.data.ptr, piece.nbytes, self._nccl.NCCL_UINT8, rank, self._stream())
        return received

    def reducescatter(
        self, data: np.ndarray, counts: Sequence[int], op: int, finish: Finish
    ) -> np.ndarray:
        code = self._types.get(data.dtype)
        if len(set(counts)) > 1 or code is None:
            return super().reducescatter(data, counts, op, finish)
        kept = np.empty_like(data, shape=(counts[0],))
        source, into, kind = data.data.ptr, kept.data.ptr, self._kinds[SUM if op == AVERAGE else op]
        self._communicator.reduceScatter(source, into, counts[0], code, kind, self._stream())
        finish(kept)
        return kept
