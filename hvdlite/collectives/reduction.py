"""The arithmetic of a reduction on flat numpy arrays, for every dtype.

All algorithms use these few functions, so they agree on the rules:
- Half precision (float16, bfloat16) is added up in float32 and rounded once at the end.
- An average of floats is the sum divided by the number of ranks; of integers, that quotient
  rounded toward zero.
- A scale factor on integers multiplies in float64 and rounds toward zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, OP_NAMES, PRODUCT, SUM

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# The dtype in which halves are added up. A dict, since comparing dtypes takes microseconds.
HALVES = {np.dtype(np.float16): np.dtype(np.float32), BFLOAT16: np.dtype(np.float32)}
UFUNCS = {SUM: np.add, AVERAGE: np.add, MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}

BLOCK_BYTES = 1 << 18  # a block's operands stay in the core's own cache


def check_op(op: int, dtype: np.dtype, title: str) -> None:
    """Raise ValueError if `op` has no meaning for the dtype."""
    if op == ADASUM:
        if title != "allreduce":
            raise NotImplementedError(f"{title}: op=Adasum is for allreduce on its own")
        if dtype.kind != "f" and dtype not in HALVES:
            raise ValueError(f"{title}: Adasum is defined for floating-point tensors, not {dtype}")
        return
    if op not in UFUNCS:
        known = ", ".join(OP_NAMES[known] for known in UFUNCS)
        raise ValueError(f"{title}: op={op!r} is none of {known}")
    if dtype == np.bool_ and op in (SUM, AVERAGE):
        raise ValueError(
            f"{title}: {OP_NAMES[op]} is not defined for bool; use op=Max for 'any', op=Min for "
            "'all', or turn the tensor into integers to count"
        )
    if dtype.kind == "c" and op in (MIN, MAX):
        raise ValueError(f"{title}: {OP_NAMES[op]} is not defined for complex numbers")


def neutral(op: int, dtype: np.dtype) -> Any:
    """The value that changes no result of a reduction: 0 in a sum, the largest for a minimum."""
    if op == PRODUCT:
        return 1
    if op not in (MIN, MAX):
        return 0
    if dtype.kind == "b":
        return op == MIN
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.max if op == MIN else limits.min
    return np.inf if op == MIN else -np.inf


def multiply(array: np.ndarray, factor: float) -> None:
    """Multiply in place by a scale factor.

    On a GPU float16 is multiplied by a float16, as Horovod's kernels do.
    """
    if factor == 1.0:
        return
    if array.dtype.kind in "iub":
        array[:] = (array * np.float64(factor)).astype(array.dtype)
    elif array.dtype in HALVES and (isinstance(array, np.ndarray) or array.dtype == BFLOAT16):
        array[:] = array.astype(np.float32) * np.float32(factor)
    else:
        np.multiply(array, array.dtype.type(factor), out=array)


def divide(array: np.ndarray, divisor: int) -> None:
    """Divide in place by a number of ranks; integers are rounded toward zero."""
    if divisor == 1:
        return
    if array.dtype.kind in "iu":
        # Exact for every integer: take off the remainder, which has the sign of the dividend.
        wide = array.astype(np.int64) if array.itemsize < 8 else array
        array[:] = (wide - np.fmod(wide, divisor)) // divisor
    elif array.dtype in HALVES:
        array[:] = array.astype(np.float32) / np.float32(divisor)
    elif divisor & (divisor - 1) == 0:  # a power of two: the same result, and cheaper
        np.multiply(array, array.dtype.type(1.0 / divisor), out=array)
    else:
        np.divide(array, array.dtype.type(divisor), out=array)


@dataclass(slots=True)
class Finish:
    """What is left to do to a sum of `size` ranks: an average's division, and `postscale`."""

    op: int
    postscale: float
    size: int

    def __call__(self, array: np.ndarray) -> None:
        if self.op == AVERAGE:
            divide(array, self.size)
        multiply(array, self.postscale)


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which a reduction of arrays of `dtype` is carried out."""
    return HALVES.get(dtype, dtype)


def reduce_into(
    out: np.ndarray, parts: Sequence[np.ndarray], op: int, finish: Finish | None = None
) -> None:
    """out = finish(parts[0] op parts[1] op ...), in this order, block by block.

    All arrays are flat and of one length, the parts of one dtype, which is that of `out` or, for
    halves, also its accumulator. `out` may be one of the parts.
    """
    ufunc, dtype = UFUNCS[op], accumulator(out.dtype)
    block = BLOCK_BYTES // out.itemsize
    if len(parts) == 2 and len(out) <= block and dtype is out.dtype is parts[0].dtype:
        ufunc(parts[0], parts[1], out=out)
        if finish is not None:
            finish(out)
        return
    scratch = None
    if len(parts) > 2 or dtype != out.dtype:
        scratch = np.empty(min(block, len(out)), dtype=dtype)
    for start in range(0, len(out), block):
        piece = slice(start, start + block)
        target = out[piece]
        work = target if scratch is None else scratch[: len(target)]
        total, *others = (part[piece].astype(dtype, copy=False) for part in parts)
        for other in others:
            total = ufunc(total, other, out=work)
        if finish is not None and dtype != out.dtype:
            finish(total)
        if total is not target:
            target[:] = total
        if finish is not None and dtype == out.dtype:
            finish(target)
