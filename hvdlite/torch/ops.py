"""The collectives on tensors: asynchronous ones, and what waits for them."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hvdlite.basics import engine
from hvdlite.basics import process_set_number as _group
from hvdlite.exceptions import HorovodInternalError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.reduction import check_op
from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM, Descriptor, Request
from hvdlite.torch.handles import single, start, synchronize
from hvdlite.torch.tensors import Host, dtype_name, from_array, numpy_dtype

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT


def _member_names(base: str, count: int) -> list[str]:
    """A name for each tensor of a grouped call. A single one is called as without a group."""
    return [base] if count == 1 else [f"{base}_{i + 1}of{count}" for i in range(count)]


# Allreduce


def operation(average: bool | None, op: int | None) -> int:
    """The reduction from `op` and its old spelling `average`; both at once is an error."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("give op or average, not both; op is the one to use")
    warnings.warn(
        "average= is the old spelling: use op=hvd.Average or op=hvd.Sum",
        DeprecationWarning,
        stacklevel=4,
    )
    return Average if average else Sum


def check_tensor(tensor: Any, kind: str) -> None:
    """Raise TypeError for what is no tensor, ValueError for one that can't be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{kind} takes a torch.Tensor, not {type(tensor).__name__}: {tensor!r:.60}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{kind} takes a dense tensor; this one is {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"{kind} takes a tensor with data; this one is on the meta device")
    numpy_dtype(tensor.dtype)


def _factors(prescale: Any, postscale: Any, kind: str) -> dict[str, float]:
    try:
        return {"prescale": float(prescale), "postscale": float(postscale)}
    except (TypeError, ValueError):
        raise TypeError(
            f"{kind}: scale factors must be numbers, not {prescale!r} and {postscale!r}"
        ) from None


def _describe(kind: str, name: str, tensor: torch.Tensor, shape=None, **more) -> Descriptor:
    """A call's descriptor; `shape` leaves out a first dimension that may differ."""
    shape = tuple(tensor.shape if shape is None else shape)
    dtype, device = dtype_name(tensor.dtype), tensor.device.type
    return Descriptor(kind, name, dtype=dtype, shapes=(shape,), device=device, **more)


def _allreduce(tensors, outputs, average, name, op, prescale, postscale, process_set) -> int:
    """Start to reduce `tensors` into `outputs`; the result is the list of these."""
    number, op = _group(process_set), operation(average, op)
    factors = _factors(prescale, postscale, "allreduce")
    for tensor in tensors:  # before a name is taken, whose number would be missing on this rank
        check_tensor(tensor, "allreduce")
        check_op(op, numpy_dtype(tensor.dtype), "allreduce")
    if len({tensor.device.type for tensor in tensors}) > 1:
        raise HorovodInternalError(
            "allreduce: the tensors of a group must all be on the CPU, or all on a GPU"
        )
    names = _member_names(engine().name("allreduce", name, number), len(tensors))
    requests, hosts = [], []
    for tensor, output, member in zip(tensors, outputs, names, strict=True):
        what = _describe("allreduce", member, tensor, op=op, **factors)
        host = Host(output)
        source = host if tensor is output else Host(tensor)
        hosts.append(host)
        requests.append(Request(what, (source.array,), (host.array,)))

    def results() -> list[torch.Tensor]:
        for host in hosts:
            host.give_back()
        return list(outputs)

    return start(requests, number, results)


def _new_like(tensor: Any, kind: str) -> torch.Tensor:
    check_tensor(tensor, kind)
    return torch.empty_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor in place over all ranks; returns a handle.

    Every rank gives the same name, shape and dtype. With op=Average (the default) the result is
    the sum divided by the number of ranks, for integers rounded toward zero.
    `prescale_factor` is applied before the reduction and `postscale_factor` after it.
    """
    return single(
        grouped_allreduce_async_(
            [tensor], average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `allreduce_async_`, but the result is a new tensor."""
    return single(
        grouped_allreduce_async(
            [tensor], average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allreduce_async_` for several tensors at once; the result is the list of them."""
    return _allreduce(
        tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allreduce_async` for several tensors at once; the result is a list of new tensors."""
    outputs = [_new_like(tensor, "allreduce") for tensor in tensors]
    return _allreduce(
        tensors, outputs, average, name, op, prescale_factor, postscale_factor, process_set
    )


# Broadcast


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to overwrite a tensor with the root's; returns a handle.

    Raises ValueError if `root_rank` is not a rank of the process set.
    """
    check_tensor(tensor, "broadcast")
    return _broadcast(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `broadcast_async_`, but the result is a new tensor."""
    check_tensor(tensor, "broadcast")
    output = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _broadcast(output, root_rank, name, process_set)


def _broadcast(output, root_rank, name, process_set) -> int:
    number = _group(process_set)
    if root_rank not in process_set.ranks:
        raise ValueError(
            f"broadcast: root_rank={root_rank!r} is not a rank of {process_set}; "
            f"choose one of {process_set.ranks}"
        )
    host = Host(output)
    name = engine().name("broadcast", name, number)
    what = _describe("broadcast", name, output, root=int(root_rank))

    def result() -> torch.Tensor:
        host.give_back()
        return output

    return start([Request(what, (host.array,), (host.array,))], number, result)


# Allgather


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to put all ranks' tensors one behind the other, along the first dimension.

    That dimension may differ between ranks; the others and the dtype may not.
    Raises ValueError for a tensor without dimensions.
    """
    return single(grouped_allgather_async([tensor], name, process_set))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allgather_async` for several tensors at once; the result is a list."""
    number = _group(process_set)
    for tensor in tensors:
        check_has_rows(tensor, "allgather")
    names = _member_names(engine().name("allgather", name, number), len(tensors))
    requests = []
    for tensor, member in zip(tensors, names, strict=True):
        what = _describe("allgather", member, tensor, tensor.shape[1:])
        requests.append(Request(what, (Host(tensor).array,), item=[tensor.shape[0]]))

    def results() -> list[torch.Tensor]:
        return [
            _rows_from(request.result[0], sum(request.result[1]), tensor)
            for request, tensor in zip(requests, tensors, strict=True)
        ]

    return start(requests, number, results)


def _rows_from(data: np.ndarray, rows: int, like: torch.Tensor) -> torch.Tensor:
    """Flat data as a tensor of so many rows like those of `like`, on its device."""
    return from_array(data).view(int(rows), *like.shape[1:]).to(like.device)


def check_has_rows(tensor: Any, kind: str) -> None:
    """Raise ValueError for a tensor without a first dimension, TypeError for no tensor."""
    check_tensor(tensor, kind)
    if tensor.dim() == 0:
        raise ValueError(f"{kind}: a tensor without dimensions has no rows; use t.view(1)")


# Alltoall and reducescatter


def split_rows(rows: int, splits: Any, process_set: ProcessSet) -> list[int]:
    """How many rows go to each rank; ValueError where `splits` don't fit."""
    _group(process_set)
    size = process_set.size()
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall: {rows} rows can't be divided evenly among {size} ranks; give splits"
            )
        return [rows // size] * size
    counts = np.asarray(splits.tolist() if isinstance(splits, torch.Tensor) else splits)
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise ValueError(f"alltoall: splits must be a list or tensor of integers, not {splits!r}")
    counts = counts.tolist()
    if len(counts) != size or min(counts) < 0 or sum(counts) != rows:
        raise ValueError(
            f"alltoall: splits={counts} must be {size} numbers, one for each rank, that add up to "
            f"the tensor's {rows} rows"
        )
    return counts


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send the i-th stretch of rows to rank i.

    `splits` are the stretches' numbers of rows; without it all are the same.
    The result is what came in, in rank order, and with `splits` also the number of rows from each
    rank. Raises ValueError for splits that don't fit the tensor.
    """
    number = _group(process_set)
    check_has_rows(tensor, "alltoall")
    counts = split_rows(tensor.shape[0], splits, process_set)
    what = _describe("alltoall", engine().name("alltoall", name, number), tensor, tensor.shape[1:])
    request = Request(what, (Host(tensor).array,), item=counts)

    def result() -> Any:
        data, received = request.result
        output = _rows_from(data, sum(received), tensor)
        if splits is None:
            return output
        return output, torch.tensor(received, dtype=torch.int32).to(tensor.device)

    return start([request], number, result)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce a tensor over all ranks and to leave each with its share of the rows.

    Where the rows can't be shared out evenly, the first ranks get one more.
    """
    return single(
        grouped_reducescatter_async(
            [tensor], name, op, process_set, prescale_factor, postscale_factor
        )
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """`reducescatter_async` for several tensors at once; the result is a list."""
    number = _group(process_set)
    factors = _factors(prescale_factor, postscale_factor, "reducescatter")
    for tensor in tensors:
        check_has_rows(tensor, "reducescatter")
        check_op(op, numpy_dtype(tensor.dtype), "reducescatter")
    names = _member_names(engine().name("reducescatter", name, number), len(tensors))
    requests = []
    for tensor, member in zip(tensors, names, strict=True):
        what = _describe("reducescatter", member, tensor, op=op, **factors)
        requests.append(Request(what, (Host(tensor).array,)))
    size, index = process_set.size(), process_set.rank()

    def results() -> list[torch.Tensor]:
        return [
            _rows_from(
                request.result,
                tensor.shape[0] // size + (index < tensor.shape[0] % size),
                tensor,
            )
            for request, tensor in zip(requests, tensors, strict=True)
        ]

    return start(requests, number, results)


# Meeting


def join(device: int = -1) -> int:
    """Out of data: go along with the other ranks' allreduces, with zeros, until all have joined.

    Returns the last rank that joined. `device` is accepted for compatibility.
    """
    request = Request(Descriptor("join", engine().name("join")))
    return synchronize(start([request], 0, lambda: request.result))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here."""
    number = _group(process_set)
    name = engine().name("barrier", group=number)
    synchronize(start([Request(Descriptor("barrier", name))], number, lambda: None))
