"""The collectives on tensors: asynchronous ones, and what waits for them."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hvdlite.basics import engine
from hvdlite.basics import process_set_number as _group
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.reduction import check_op
from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM, Descriptor, Request
from hvdlite.torch.tensors import Host, from_array, numpy_dtype

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT


class _Call:
    """What a handle stands for: the requests under way, and how their results become tensors."""

    __slots__ = ("finish", "group", "requests")

    def __init__(self, requests: list[Request], group: int, finish: Callable[[], Any]):
        self.requests = requests
        self.group = group
        self.finish = finish


_calls: dict[int, _Call] = {}
_next_handle = itertools.count(1)


def _start(requests: list[Request], group: int, finish: Callable[[], Any]) -> int:
    current = engine()
    for request in requests:
        current.submit(request, group)
    handle = next(_next_handle)
    _calls[handle] = _Call(requests, group, finish)
    return handle


def _call_of(handle: int) -> _Call:
    call = _calls.get(handle)
    if call is None:
        raise ValueError(
            f"{handle!r} is not a handle of a call under way: each handle, as an _async function "
            "returned it, can be synchronized once"
        )
    return call


def poll(handle: int) -> bool:
    """Whether the call is done, so that `synchronize` won't wait. Moves calls along."""
    call = _call_of(handle)
    done = [engine().poll(request) for request in call.requests]
    return all(done)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous call and return its result.

    Raises HorovodInternalError, the same on every rank, where the call failed.
    """
    call = _call_of(handle)
    del _calls[handle]
    for request in call.requests:
        engine().wait(request, call.group)
    return call.finish()


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
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{kind} takes a torch.Tensor, not {type(tensor).__name__}: {tensor!r:.60}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{kind} takes a dense tensor; this one is {tensor.layout}")


def _allreduce(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    names: Sequence[str],
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    finish: Callable[[], Any] | None = None,
) -> int:
    number = _group(process_set)
    requests, hosts = [], []
    for tensor, output, name in zip(tensors, outputs, names, strict=True):
        check_tensor(tensor, "allreduce")
        dtype = numpy_dtype(tensor.dtype)
        check_op(op, dtype, "allreduce")
        device = tensor.device.type
        what = Descriptor(
            "allreduce",
            name,
            op,
            dtype.name,
            (tuple(tensor.shape),),
            -1,
            prescale,
            postscale,
            device,
        )
        host = Host(output)
        source = host if tensor is output else Host(tensor)
        hosts.append(host)
        requests.append(Request(what, (source.array,), (host.array,)))

    def results() -> Any:
        for host in hosts:
            host.give_back()
        return finish() if finish else outputs[0]

    return _start(requests, number, results)


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
    name = engine().name("allreduce", name, _group(process_set))
    op = operation(average, op)
    return _allreduce(
        (tensor,), (tensor,), (name,), op, prescale_factor, postscale_factor, process_set
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
    check_tensor(tensor, "allreduce")
    output = torch.empty_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)
    name = engine().name("allreduce", name, _group(process_set))
    op = operation(average, op)
    return _allreduce(
        (tensor,), (output,), (name,), op, prescale_factor, postscale_factor, process_set
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
    return _grouped_allreduce(
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
    outputs = [
        torch.empty_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    return _grouped_allreduce(
        tensors, outputs, average, name, op, prescale_factor, postscale_factor, process_set
    )


def _grouped_allreduce(
    tensors, outputs, average, name, op, prescale_factor, postscale_factor, process_set
) -> int:
    names = _member_names(engine().name("allreduce", name, _group(process_set)), len(tensors))
    op = operation(average, op)
    return _allreduce(
        tensors,
        outputs,
        names,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        finish=lambda: list(outputs),
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
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `broadcast_async_`, but the result is a new tensor."""
    check_tensor(tensor, "broadcast")
    output = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _broadcast(output, output, root_rank, name, process_set)


def _broadcast(tensor, output, root_rank, name, process_set) -> int:
    check_tensor(tensor, "broadcast")
    number = _group(process_set)
    if root_rank not in process_set.ranks:
        raise ValueError(
            f"broadcast: root_rank={root_rank!r} is not a rank of {process_set}; "
            f"choose one of {process_set.ranks}"
        )
    dtype, host = numpy_dtype(tensor.dtype), Host(output)
    what = Descriptor(
        "broadcast",
        engine().name("broadcast", name, number),
        -1,
        dtype.name,
        (tuple(tensor.shape),),
        int(root_rank),
        1.0,
        1.0,
        tensor.device.type,
    )

    def result() -> torch.Tensor:
        host.give_back()
        return output

    return _start([Request(what, (host.array,), (host.array,))], number, result)


# Allgather


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to put all ranks' tensors one behind the other, along the first dimension.

    That dimension may differ between ranks; the others and the dtype may not.
    Raises ValueError for a tensor without dimensions.
    """
    return _start(
        *_allgather(tensor, engine().name("allgather", name, _group(process_set)), process_set)
    )


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allgather_async` for several tensors at once; the result is a list."""
    names = _member_names(engine().name("allgather", name, _group(process_set)), len(tensors))
    requests, finishers, number = [], [], _group(process_set)
    for tensor, member in zip(tensors, names, strict=True):
        (request,), number, finish = _allgather(tensor, member, process_set)
        requests.append(request)
        finishers.append(finish)
    return _start(requests, number, lambda: [finish() for finish in finishers])


def check_has_rows(tensor: Any, kind: str) -> None:
    """Raise ValueError for a tensor without a first dimension, TypeError for no tensor."""
    check_tensor(tensor, kind)
    if tensor.dim() == 0:
        raise ValueError(f"{kind}: a tensor without dimensions has no rows; use t.view(1)")


def _allgather(tensor, name, process_set) -> tuple[list[Request], int, Callable]:
    check_has_rows(tensor, "allgather")
    row_shape = tuple(tensor.shape[1:])
    what = Descriptor(
        "allgather",
        name,
        -1,
        numpy_dtype(tensor.dtype).name,
        (row_shape,),
        -1,
        1.0,
        1.0,
        tensor.device.type,
    )
    request = Request(what, (Host(tensor).array,), item=[tensor.shape[0]])

    def result() -> torch.Tensor:
        data, rows = request.result
        gathered = from_array(data).view(int(np.sum(rows)), *row_shape)
        return gathered.to(tensor.device)

    return [request], _group(process_set), result


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here."""
    number = _group(process_set)
    name = engine().name("barrier", group=number)
    what = Descriptor("barrier", name, -1, "", ((),), -1, 1.0, 1.0, "cpu")
    synchronize(_start([Request(what)], number, lambda: None))
