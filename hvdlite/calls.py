"""The collectives on numpy arrays, which every binding builds on: checks, names, requests.

A binding turns its tensors into contiguous arrays, starts a call here, and turns what
`Call.wait` returns back into tensors. Arrays are used as they are, without a copy.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdlite.basics import engine, process_set_number
from hvdlite.collectives.reduction import check_op
from hvdlite.engine.engine import Engine
from hvdlite.gpu.cuda import CPU, Device
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE, SUM, Descriptor, Request, dtype_name


class Call:
    """Requests under way together, and how their results become one."""

    __slots__ = ("_engine", "_finish", "_requests", "_set_id")

    def __init__(
        self, engine: Engine, requests: list[Request], set_id: int, finish: Callable[[], Any]
    ):
        self._engine = engine  # after shutdown() and init() there is another one
        self._requests = requests
        self._set_id = set_id
        self._finish = finish

    def then(self, change: Callable[[Any], Any]) -> "Call":
        """The same call, with its result passed through a function."""
        finish = self._finish
        self._finish = lambda: change(finish())
        return self

    def poll(self) -> bool:
        """Whether the call is done, so that `wait` returns at once. Moves calls along."""
        done = [self._engine.poll(request, self._set_id) for request in self._requests]
        return all(done)

    def wait(self) -> Any:
        """The result. Raises HorovodInternalError, the same on every rank, where it failed."""
        for request in self._requests:
            self._engine.wait(request, self._set_id)
        return self._finish()


# Arguments


def operation(average: bool | None, op: int | None) -> int:
    """The reduction from `op` and its old spelling `average`; both at once is an error."""
    if average is None:
        return AVERAGE if op is None else op
    if op is not None:
        raise ValueError("give op or average, not both; op is the one to use")
    warnings.warn(
        "average= is the old spelling: use op=hvd.Average or op=hvd.Sum",
        DeprecationWarning,
        stacklevel=4,
    )
    return AVERAGE if average else SUM


def check_root(root_rank: int, process_set: ProcessSet, title: str = "broadcast") -> None:
    """Raise ValueError unless `root_rank` is a rank of the set."""
    if root_rank not in process_set.ranks:
        raise ValueError(
            f"{title}: root_rank={root_rank!r} is not a rank of {process_set}; "
            f"choose one of {process_set.ranks}"
        )


def split_rows(rows: int, splits: Any, process_set: ProcessSet) -> list[int]:
    """How many rows go to each rank; ValueError where `splits` don't fit."""
    process_set_number(process_set)
    size = process_set.size()
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall: {rows} rows can't be divided evenly among {size} ranks; give splits"
            )
        return [rows // size] * size
    counts = np.asarray(splits)
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise ValueError(f"alltoall: splits must be a list or tensor of integers, not {splits!r}")
    counts = counts.tolist()
    if len(counts) != size or min(counts) < 0 or sum(counts) != rows:
        raise ValueError(
            f"alltoall: splits={counts} must be {size} numbers, one for each rank, that add up to "
            f"the tensor's {rows} rows"
        )
    return counts


def _factors(prescale: Any, postscale: Any, kind: str) -> tuple[float, float]:
    try:
        return float(prescale), float(postscale)
    except (TypeError, ValueError):
        raise TypeError(
            f"{kind}: scale factors must be numbers, not {prescale!r} and {postscale!r}"
        ) from None


def _check_has_rows(arrays: Sequence[np.ndarray], kind: str) -> None:
    if any(array.ndim == 0 for array in arrays):
        raise ValueError(f"{kind}: a tensor without dimensions has no rows; reshape it to (1,)")


def _check_ops(op: int, arrays: Sequence[np.ndarray], kind: str) -> None:
    for array in arrays:
        check_op(op, array.dtype, kind)


def _start(
    kind: str,
    name: str | None,
    set_id: int,
    arrays: Sequence[np.ndarray],
    device: Device,
    *,
    outputs: Sequence[np.ndarray] | None = None,
    counts: Sequence[Sequence[int]] | None = None,
    op: int = -1,
    root: int = -1,
    scales: tuple[float, float] = (1.0, 1.0),
    skip: int = 0,
) -> tuple[Engine, list[Request]]:
    """Start a request for each array. A single one is named as without a group.

    The first `skip` dimensions may differ between ranks. What is wrong with the arrays is an error
    of this call, before it takes a name, whose number would be missing on this rank.
    Raises TypeError for elements that are no numbers.
    """
    current = engine()
    prepared = []
    for i, array in enumerate(arrays):
        flat = (array.reshape(-1),)
        into = ()
        if outputs is not None:
            into = flat if outputs[i] is array else (outputs[i].reshape(-1),)
        rows = () if counts is None else counts[i]
        prepared.append((dtype_name(array.dtype), (array.shape[skip:],), flat, into, rows))

    def make(base: str, numbered: bool) -> list[Request]:
        requests = []
        for i, (dtype, shapes, flat, into, rows) in enumerate(prepared, 1):
            each = base if len(prepared) == 1 else f"{base}_{i}of{len(prepared)}"
            # By position, which takes half the time of keywords.
            descriptor = Descriptor(
                kind, each, op, dtype, shapes, root, *scales, device.name, numbered
            )
            request = Request(descriptor, flat, into, rows)
            request.stream, request.current = device.stream, device.current
            requests.append(request)
        return requests

    return current, current.start(kind, name, set_id, make)


# Collectives


def allreduce(
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    name: str | None = None,
    op: int = AVERAGE,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    device: Device = CPU,
) -> Call:
    """Start to reduce each array over all ranks into its output, which may be itself.

    Every rank gives the same name, shapes and dtypes. The result is the list of outputs.
    """
    set_id = process_set_number(process_set)
    scales = _factors(prescale, postscale, "allreduce")
    _check_ops(op, arrays, "allreduce")
    current, requests = _start(
        "allreduce", name, set_id, arrays, device, outputs=outputs, op=op, scales=scales
    )
    return Call(current, requests, set_id, lambda: list(outputs))


def broadcast(
    array: np.ndarray,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    device: Device = CPU,
) -> Call:
    """Start to overwrite an array with the root's; the result is the array.

    Raises ValueError if `root_rank` is not a rank of the process set.
    """
    set_id = process_set_number(process_set)
    check_root(root_rank, process_set)
    current, requests = _start(
        "broadcast", name, set_id, [array], device, outputs=[array], root=int(root_rank)
    )
    return Call(current, requests, set_id, lambda: array)


def allgather(
    arrays: Sequence[np.ndarray],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    device: Device = CPU,
) -> Call:
    """Start to put all ranks' arrays one behind the other, along the first dimension.

    That dimension may differ between ranks; the others and the dtype may not. The result is a
    list. Raises ValueError for an array without dimensions.
    """
    set_id = process_set_number(process_set)
    _check_has_rows(arrays, "allgather")
    counts = [array.shape[:1] for array in arrays]
    current, requests = _start("allgather", name, set_id, arrays, device, counts=counts, skip=1)

    def results() -> list[np.ndarray]:
        return [
            request.result[0].reshape(int(sum(request.result[1])), *array.shape[1:])
            for request, array in zip(requests, arrays, strict=True)
        ]

    return Call(current, requests, set_id, results)


def alltoall(
    array: np.ndarray,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    device: Device = CPU,
) -> Call:
    """Start to send the i-th stretch of rows to rank i.

    `splits` are the stretches' numbers of rows; without it all are the same. The result is what
    came in, in rank order, and the number of rows from each rank (int32).
    Raises ValueError for splits that don't fit the array.
    """
    set_id = process_set_number(process_set)
    _check_has_rows([array], "alltoall")
    counts = [split_rows(array.shape[0], splits, process_set)]
    current, requests = _start("alltoall", name, set_id, [array], device, counts=counts, skip=1)

    def result() -> tuple[np.ndarray, np.ndarray]:
        data, received = requests[0].result
        return data.reshape(int(sum(received)), *array.shape[1:]), received.astype(np.int32)

    return Call(current, requests, set_id, result)


def reducescatter(
    arrays: Sequence[np.ndarray],
    name: str | None = None,
    op: int = AVERAGE,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    device: Device = CPU,
) -> Call:
    """Start to reduce arrays over all ranks and to leave each with its share of the rows.

    Where the rows can't be shared out evenly, the first ranks get one more. The result is a list.
    """
    set_id = process_set_number(process_set)
    scales = _factors(prescale, postscale, "reducescatter")
    _check_has_rows(arrays, "reducescatter")
    _check_ops(op, arrays, "reducescatter")
    current, requests = _start("reducescatter", name, set_id, arrays, device, op=op, scales=scales)

    def results() -> list[np.ndarray]:
        size, index = process_set.size(), process_set.rank()
        return [
            request.result.reshape(
                array.shape[0] // size + (index < array.shape[0] % size), *array.shape[1:]
            )
            for request, array in zip(requests, arrays, strict=True)
        ]

    return Call(current, requests, set_id, results)


def _start_bare(kind: str, set_id: int) -> tuple[Engine, list[Request]]:
    """Start a call that has no tensor."""

    def make(name: str, numbered: bool) -> list[Request]:
        return [Request(Descriptor(kind, name, numbered=numbered))]

    current = engine()
    return current, current.start(kind, None, set_id, make)


def join() -> int:
    """Out of data: go along with the other ranks' allreduces, with what leaves their results as
    they are (zeros in a sum), until all have joined.

    Returns the last rank that joined.
    """
    current, requests = _start_bare("join", 0)
    return Call(current, requests, 0, lambda: requests[0].result).wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here."""
    set_id = process_set_number(process_set)
    current, requests = _start_bare("barrier", set_id)
    Call(current, requests, set_id, lambda: None).wait()
