"""hvdlite on numpy arrays, as a binding would offer it: for tests that need no framework.

Collectives on an array start here and return a `Call`, so that it is the test that waits:

    import arrays as hvd
    hvd.init()
    total = hvd.allreduce(np.ones(2), op=hvd.Sum).wait()
"""

# ruff: noqa: F401, F403
from operator import itemgetter
from typing import Any

import numpy as np

from hvdlite import *
from hvdlite import calls
from hvdlite.calls import Call, barrier, join
from hvdlite.exceptions import HorovodInternalError
from hvdlite.objects import allgather_object, broadcast_object
from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT
_first = itemgetter(0)


def allreduce(array: np.ndarray, name: str | None = None, **options: Any) -> Call:
    """Start to reduce an array over all ranks; the result is a new one."""
    return calls.allreduce([array], [np.empty_like(array)], name, **options).then(_first)


def allgather(array: np.ndarray, name: str | None = None, **options: Any) -> Call:
    """Start to put all ranks' arrays one behind the other."""
    return calls.allgather([array], name, **options).then(_first)


def broadcast(array: np.ndarray, root: int, name: str | None = None, **options: Any) -> Call:
    """Start to get the root's array; the result is a new one."""
    return calls.broadcast(array.copy(), root, name, **options)


def alltoall(array: np.ndarray, **options: Any) -> Call:
    """Start to send the i-th part of the rows to rank i."""
    return calls.alltoall(array, **options).then(_first)


def reducescatter(array: np.ndarray, name: str | None = None, **options: Any) -> Call:
    """Start to reduce an array over all ranks and to get a share of its rows."""
    return calls.reducescatter([array], name, **options).then(_first)
