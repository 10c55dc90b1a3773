"""Memory that all ranks of one host can read and write, one row for each rank.

The memory is an anonymous file (Linux memfd) that one rank makes and the others open through
/proc. It has no name, so nothing is left behind however a process ends; it does not count
against /dev/shm, which containers keep small; and it lives as long as somebody still looks at
it, so a gradient that is a view of it stays valid after `shutdown()`.
"""

import ctypes
import gc
import mmap
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

_PAGE = 4096
_in_use = 0  # bytes of all segments that this process has mapped


def _anonymous_file() -> int:
    """A descriptor of a new memory file, or -1. Not every Python's os module can make one."""
    try:
        return ctypes.CDLL(None).memfd_create(b"hvdlite", 1)  # 1: close on exec
    except AttributeError:
        return -1


def _grow(fd: int, size: int, limit: int) -> bool:
    """Reserve `size` bytes, so that a lack of memory shows now and not as a crash at first use."""
    if _in_use + size > limit:
        gc.collect()  # an earlier world's memory goes with its last cycle of references
    if _in_use + size > limit:
        return False
    try:
        os.ftruncate(fd, size)
    except OSError:
        return False
    return True


class Segment:
    """`rows[i]` is rank i's row: an array of bytes that every rank of the host can use.

    `index` is the row of this rank.
    """

    def __init__(self, memory: mmap.mmap, nrows: int, row_bytes: int, index: int):
        self.index = index
        self.memory = memory
        whole = np.frombuffer(memory, dtype=np.uint8).reshape(nrows, -1)
        self.rows = [row[:row_bytes] for row in whole]


def allocate(
    comm: "MPI.Intracomm",
    row_bytes: int,
    limit: int = 1 << 62,
    allgather: Callable[[Any], list[Any]] | None = None,
) -> Segment | None:
    """Make a segment with a row of `row_bytes` for each rank of `comm`; all ranks must call it.

    `allgather` is used instead of the communicator's own, which can't be interrupted.

    Returns None on every rank if one of them can't have it: no memory, `limit` bytes exceeded,
    or processes that may not see each other (containers with separate process namespaces).
    Each rank reserves its own row, so that the pages lie near the core that fills them.
    """
    global _in_use
    stride = -(-row_bytes // _PAGE) * _PAGE
    size = stride * comm.size
    fd, where = -1, None
    if comm.rank == 0:
        fd = _anonymous_file()
        if fd >= 0 and _grow(fd, size, limit):
            where = f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino
    allgather = allgather or comm.allgather
    try:
        where = allgather(where)[0]
        memory = _open_row(*where, stride, size, comm.rank) if where is not None else None
        # Nobody may close the file before everybody has opened it.
        if not all(allgather(memory is not None)):
            return None
        _in_use += size
        weakref.finalize(memory, _give_back, size)
        return Segment(memory, comm.size, row_bytes, comm.rank)
    finally:
        if fd >= 0:
            os.close(fd)


def _give_back(size: int) -> None:
    global _in_use
    _in_use -= size


def _open_row(path: str, inode: int, stride: int, size: int, row: int) -> mmap.mmap | None:
    try:
        with open(path, "r+b", buffering=0) as file:
            fd = file.fileno()
            if os.fstat(fd).st_ino != inode:  # another process has that number in our container
                return None
            os.posix_fallocate(fd, row * stride, stride)
            return mmap.mmap(fd, size)
    except OSError:
        return None


def fence() -> None:
    """Order the stores before it against those after it, and likewise the loads.

    x86 processors do that by themselves; on others the world puts MPI's barrier (Win.Sync) here.
    """
