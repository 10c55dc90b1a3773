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
    """Requests under way together, and how their results become one.

    Any thread may poll it or wait for it, one at a time.
    """

    __slots__ = ("_changes", "_engine", "_requests")

    def __init__(self, engine: Engine, requests: list[Request]):
        self._engine = engine  # after shutdown() and init() there is another one
        self._requests = requests
        self._changes: list[Callable[[Any], Any]] = []

    def then(self, change: Callable[[Any], Any]) -> "Call":
        """The same call, with its result passed through a function."""
        self._changes.append(change)
        return self

    def poll(self) -> bool:
        """Whether the call is done, so that `wait` returns at once. Moves calls along."""
        return all(self._engine.poll(request) for request in self._requests)

    def wait(self) -> Any:
        """The result. Raises HorovodInternalError, the same on every rank, where it failed."""
        for request in self._requests:
            self._engine.wait(request)
        result: Any = [request.result for request in self._requests]
        for change in self._changes:
            result = change(result)
        return result


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
    """Raise ValueError unless this rank and `root_rank` are ranks of the set."""
    process_set_number(process_set)
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
    process_set: ProcessSet,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray] = (),
    counts: Sequence[Sequence[int]] = (),
    skip: int = 0,
    op: int = -1,
    root: int = -1,
    scales: tuple[float, float] = (1.0, 1.0),
    device: Device = CPU,
) -> Call:
    """Start a request for each array, whose results are the call's; see Descriptor and Request.

    The first `skip` dimensions may differ between ranks. What is wrong with the arrays is an error
    of this call, before it takes a number, which would be missing on this rank. Raises TypeError
    for elements that are no numbers.
    """
    set_id, current = process_set_number(process_set), engine()
    dtypes = [dtype_name(array.dtype) for array in arrays]

    def make(base: str) -> list[Request]:
        requests = []
        for i, array in enumerate(arrays):
            own = base if len(arrays) == 1 else f"{base}_{i + 1}of{len(arrays)}"
            # By position, which takes half the time of keywords.
            shapes, numbered = (array.shape[skip:],), name is None
            descriptor = Descriptor(
                kind, own, op, dtypes[i], shapes, root, *scales, device.name, numbered
            )
            flat, into = (array.reshape(-1),), ()
            if outputs:
                into = flat if outputs[i] is array else (outputs[i].reshape(-1),)
            request = Request(descriptor, flat, into, counts[i] if counts else array.shape[:skip])
            request.stream, request.current = device.stream, device.current
            requests.append(request)
        return requests

    return Call(current, current.start(kind, name, set_id, make))


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
    scales = _factors(prescale, postscale, "allreduce")
    _check_ops(op, arrays, "allreduce")
    call = _start(
        "allreduce", name, process_set, arrays, outputs, op=op, scales=scales, device=device
    )
    return call.then(lambda _: list(outputs))


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
    check_root(root_rank, process_set)
    root = int(root_rank)
    call = _start("broadcast", name, process_set, [array], [array], root=root, device=device)
    return call.then(lambda _: array)


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
    _check_has_rows(arrays, "allgather")
    call = _start("allgather", name, process_set, arrays, skip=1, device=device)
    return call.then(
        lambda results: [
            data.reshape(int(sum(rows)), *array.shape[1:])
            for (data, rows), array in zip(results, arrays, strict=True)
        ]
    )


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
    _check_has_rows([array], "alltoall")
    counts = [split_rows(array.shape[0], splits, process_set)]
    call = _start("alltoall", name, process_set, [array], counts=counts, skip=1, device=device)

    def result(results: list) -> tuple[np.ndarray, np.ndarray]:
        ((data, received),) = results
        return data.reshape(int(sum(received)), *array.shape[1:]), received.astype(np.int32)

    return call.then(result)


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
    scales = _factors(prescale, postscale, "reducescatter")
    _check_has_rows(arrays, "reducescatter")
    _check_ops(op, arrays, "reducescatter")
    call = _start("reducescatter", name, process_set, arrays, op=op, scales=scales, device=device)

    def shares(results: list[np.ndarray]) -> list[np.ndarray]:
        size, index = process_set.size(), process_set.rank()
        return [
            data.reshape(array.shape[0] // size + (index < array.shape[0] % size), *array.shape[1:])
            for data, array in zip(results, arrays, strict=True)
        ]

    return call.then(shares)


def join() -> int:
    """Out of data: go along with the other ranks' allreduces, with what leaves their results as
    they are (zeros in a sum), until all have joined.

    Returns the last rank that joined.
    """
    return engine().call("join").result


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here."""
    engine().call("barrier", None, process_set_number(process_set))
