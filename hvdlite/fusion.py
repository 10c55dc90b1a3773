"""Tensor fusion: which calls share one collective, and where their tensors lie in its buffer.

A collective has a fixed cost however small the tensor is. Calls that were agreed on together and
that need the same treatment are therefore packed one behind the other into a flat buffer, up to
the fusion threshold.
"""

import functools
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from hvdlite.request import Request


def plan(requests: Sequence[Request], threshold: int) -> list[list[Request]]:
    """Split agreed calls into batches; each batch is one collective.

    Allreduce calls of the same dtype, operation, scale factors and device share a batch, up to
    `threshold` bytes, whatever stands between them; so do all broadcasts on a device. All others,
    and buckets, which are packed already, stay alone. The plan follows from the calls alone, so
    every rank makes the same one.
    """
    if len(requests) == 1:
        return [list(requests)]
    batches: list[list[Request]] = []
    open_batches: dict[tuple, tuple[list[Request], int]] = {}
    for request in requests:
        what = request.descriptor
        # A call is named after its kind, a bucket is not; a rank that has joined knows no more.
        if what.kind not in ("allreduce", "broadcast") or not what.name.startswith(what.kind):
            batches.append([request])
            continue
        key = (what.op, what.dtype, what.prescale, what.postscale, what.device)
        if what.kind == "broadcast":
            key = (what.device,)
        batch, filled = open_batches.get(key, (None, 0))
        filled += request.nbytes if what.kind == "allreduce" else 0  # broadcasts pack nothing
        if batch is None or filled > threshold:
            batch, filled = [], request.nbytes
            batches.append(batch)
        batch.append(request)
        open_batches[key] = (batch, filled)
    return batches


def pack(arrays: Sequence[np.ndarray], buffer: np.ndarray) -> None:
    """Copy flat arrays one behind the other into a buffer of their size together."""
    if len(arrays) == 1:  # np.concatenate takes three times as long for one
        buffer[:] = arrays[0]
    else:
        np.concatenate(arrays, out=buffer)


def unpack(buffer: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Copy a flat buffer back into the arrays that `pack` was given."""
    end = 0
    for array in arrays:
        start, end = end, end + len(array)
        array[:] = buffer[start:end]


@functools.lru_cache
def slices(count: int, size: int) -> tuple[slice, ...]:
    """Cut `count` elements into `size` pieces that differ by one element at most."""
    bounds = [count * i // size for i in range(size + 1)]
    return tuple(slice(bounds[i], bounds[i + 1]) for i in range(size))


def stretches(counts: Sequence[int]) -> list[slice]:
    """Where stretches of counts[0], counts[1], ... elements lie, one behind the other."""
    return [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]
