"""Adasum: add gradients where they point in different directions, average where they agree.

Two vectors are combined as

    (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

which takes from each half of its projection on the other: the sum if they are orthogonal, the
mean if they are the same. More vectors are combined in pairs, then the results in pairs, and so
on, so the number of ranks must be a power of two. Maleki and others, "Scaling distributed
training with adaptive summation", 2020.

Vector halving, distance doubling: at each level two ranks divide what they still hold between
them, each combines its half, and the next partner is twice as far away. The way back gathers the
pieces. Every element of the result is computed on one rank only, so all ranks have the same bits.
"""

from collections.abc import Sequence

import numpy as np

from hvdlite.collectives.reduction import BLOCK_BYTES, accumulator
from hvdlite.runtime.groups import Group

# A squared length below this has lost its digits to underflow and counts as zero.
_TINY = np.sqrt(np.finfo(np.float64).tiny)


def check_size(size: int, title: str) -> None:
    """Raise NotImplementedError unless the ranks can be combined in pairs."""
    if size & (size - 1):
        raise NotImplementedError(
            f"{title}: Adasum combines the ranks in pairs, so their number must be a power of "
            f"two, and {size} is none. Start 2, 4, 8 ... ranks, or use op=hvd.Average"
        )


def adasum(group: Group, buffer: np.ndarray, counts: Sequence[int]) -> None:
    """Combine `buffer` in place over all ranks; bit-equal on all of them afterwards.

    It holds tensors of counts[0], counts[1], ... elements one behind the other, and each has
    directions of its own. Halves are computed in float32 and rounded once.
    """
    index, size = group.index, group.size
    work = buffer.astype(accumulator(buffer.dtype), copy=False)
    ends = np.cumsum([0, *counts]).tolist()
    held, way = slice(0, len(work)), []
    distance = 1
    while distance < size:
        middle = (held.start + held.stop) // 2
        keep, give = slice(held.start, middle), slice(middle, held.stop)
        if index & distance:
            keep, give = give, keep
        received = np.empty(keep.stop - keep.start, dtype=work.dtype)
        _swap(group, index ^ distance, work[give], received)
        # Of all ranks that hold a part of these vectors, the lower half has them as `a`.
        pair = (received, work[keep]) if index & distance else (work[keep], received)
        pieces = [_overlap(keep, start, end) for start, end in zip(ends, ends[1:], strict=False)]
        products = np.array([_products(*(vector[piece] for vector in pair)) for piece in pieces])
        products = _sum_over(group, products, 2 * distance)
        for piece, numbers in zip(pieces, products, strict=True):
            _combine(*(vector[piece] for vector in pair), numbers, work[keep][piece])
        way.append((index ^ distance, keep, give))
        held, distance = keep, 2 * distance
    for partner, keep, give in reversed(way):
        _swap(group, partner, work[keep], work[give])
    if work is not buffer:
        buffer[:] = work


def _overlap(held: slice, start: int, end: int) -> slice:
    """Where elements start..end lie within the piece that is held."""
    first, last = max(start, held.start), min(end, held.stop)
    return slice(first - held.start, max(first, last) - held.start)


def _blocks(a: np.ndarray, b: np.ndarray):
    """Both vectors in float64, in blocks that stay in the core's cache."""
    step = BLOCK_BYTES // 8
    for start in range(0, len(a), step):
        piece = slice(start, start + step)
        yield piece, a[piece].astype(np.float64), b[piece].astype(np.float64)


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a.b, a.a and b.b."""
    products = np.zeros(3)
    for _, x, y in _blocks(a, b):
        products += (x @ y, x @ x, y @ y)
    return products


def _combine(a: np.ndarray, b: np.ndarray, products: np.ndarray, out: np.ndarray) -> None:
    ab, aa, bb = products
    of_a = 1 - ab / aa / 2 if aa >= _TINY else 1.0
    of_b = 1 - ab / bb / 2 if bb >= _TINY else 1.0
    for piece, x, y in _blocks(a, b):
        out[piece] = of_a * x + of_b * y


def _sum_over(group: Group, numbers: np.ndarray, size: int) -> np.ndarray:
    """The sum over `size` neighbouring ranks, in pairs as well."""
    distance = 1
    while distance < size:
        received = np.empty_like(numbers)
        _swap(group, group.index ^ distance, numbers.ravel(), received.ravel())
        numbers = numbers + received
        distance *= 2
    return numbers


def _swap(group: Group, partner: int, sent: np.ndarray, received: np.ndarray) -> None:
    requests = group.receive(received, partner) + group.send(sent, partner)
    group.wait_all(requests, "Adasum allreduce")
