"""Where tensors and shares lie in a flat buffer."""

import functools
from collections.abc import Sequence
from itertools import accumulate

import numpy as np


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
def even_slices(count: int, size: int) -> tuple[slice, ...]:
    """Cut `count` elements into `size` pieces that differ by one element at most."""
    bounds = [count * i // size for i in range(size + 1)]
    return tuple(slice(bounds[i], bounds[i + 1]) for i in range(size))


def slices_of(counts: Sequence[int]) -> list[slice]:
    """Where counts[0], counts[1], ... elements lie, one behind the other."""
    return [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]
