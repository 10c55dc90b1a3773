"""The asynchronous collectives on tensors. Each returns a handle."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from hvdlite import calls
from hvdlite.calls import operation
from hvdlite.exceptions import HorovodInternalError
from hvdlite.gpu.cuda import CPU, Device
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM
from hvdlite.torch.handles import start
from hvdlite.torch.tensors import Place, current_stream, from_array, numpy_dtype

first = itemgetter(0)  # makes the result of a call for a list of one tensor that tensor
Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT


def check_tensor(tensor: Any, kind: str) -> None:
    """Raise TypeError for what is no tensor, ValueError for one that can't be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{kind} takes a torch.Tensor, not {type(tensor).__name__}: {tensor!r:.60}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{kind} takes a dense tensor; this one is {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"{kind} takes a tensor with data; this one is on the meta device")
    numpy_dtype(tensor.dtype)


def _places(tensors: Sequence[torch.Tensor], kind: str) -> tuple[list[Place], Device]:
    """The tensors' places in memory, and the device that they are on."""
    for tensor in tensors:
        check_tensor(tensor, kind)
    elsewhere = [tensor.device for tensor in tensors if not tensor.is_cpu]
    if elsewhere and (len(elsewhere) < len(tensors) or len(set(elsewhere)) > 1):
        raise HorovodInternalError(
            f"{kind}: the tensors of a group must all be on the CPU, or all on one GPU"
        )
    device = current_stream(elsewhere[0]) if elsewhere else CPU
    return [Place(tensor, device) for tensor in tensors], device


def new_like(tensor: Any) -> torch.Tensor:
    """An uninitialized tensor for the result of an allreduce."""
    check_tensor(tensor, "allreduce")
    return torch.empty_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)


# Allreduce


def allreduce_call(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    average: bool | None,
    name: str | None,
    op: int | None,
    *options: Any,
) -> calls.Call:
    """Start to reduce `tensors` into `outputs`; the result is the list of these.

    `options` are the factors before and after the reduction, and the process set.
    """
    op = operation(average, op)
    sources, device = _places(tensors, "allreduce")
    targets = sources if outputs is tensors else _places(outputs, "allreduce")[0]
    arrays = [place.array for place in sources]
    into = arrays if targets is sources else [place.array for place in targets]
    call = calls.allreduce(arrays, into, name, op, *options, device)
    return call.then(lambda _: [place.give_back() for place in targets])


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor in place over all ranks; returns a handle for it.

    Every rank gives the same name, shape and dtype. With op=Average (the default) the result is
    the sum divided by the number of ranks, for integers rounded toward zero.
    `prescale_factor` is applied before the reduction and `postscale_factor` after it.
    """
    tensors, options = [tensor], (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call(tensors, tensors, average, name, op, *options).then(first))


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce the tensors of a list in place over all ranks; returns a handle for the list.

    By default each becomes the mean of all ranks' tensors. They travel together, in less time
    than one by one.
    """
    options = (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call(tensors, tensors, average, name, op, *options))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor over all ranks into a new one; returns a handle for it.

    `synchronize(handle)` gives the result: by default the mean of all ranks' tensors. Every rank
    gives the same shape and dtype.
    """
    output, options = new_like(tensor), (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call([tensor], [output], average, name, op, *options).then(first))


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce the tensors of a list over all ranks into new ones; returns a handle.

    By default the result is the list of the means of all ranks' tensors. They travel together.
    """
    outputs = [new_like(tensor) for tensor in tensors]
    options = (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call(tensors, outputs, average, name, op, *options))


# Broadcast


def broadcast_call(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> calls.Call:
    """Start to overwrite a tensor with the root's; the result is the tensor."""
    (place,), device = _places([tensor], "broadcast")
    call = calls.broadcast(place.array, root_rank, name, process_set, device)
    return call.then(lambda _: place.give_back())


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to overwrite a tensor with that of rank `root_rank`; returns a handle for it.

    Raises ValueError if `root_rank` is not a rank of the process set.
    """
    return start(broadcast_call(tensor, root_rank, name, process_set))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to fetch the tensor of rank `root_rank` as a new one; returns a handle for it.

    Every rank gives a tensor of the same shape and dtype.
    Raises ValueError if `root_rank` is not a rank of the process set.
    """
    check_tensor(tensor, "broadcast")
    output = tensor.detach().clone(memory_format=torch.contiguous_format)
    return broadcast_async_(output, root_rank, name, process_set)


# Allgather, alltoall, reducescatter: the result has another shape


def gathering_call(
    collective: Callable[..., calls.Call], tensors: Sequence[torch.Tensor], *options: Any
) -> calls.Call:
    """Start a collective whose results become new tensors on the device of the inputs."""
    places, device = _places(tensors, collective.__name__)
    call = collective([place.array for place in places], *options, device=device)

    def tensors_from(arrays: list) -> list[torch.Tensor]:
        pairs = zip(arrays, tensors, strict=True)
        return [from_array(array).to(tensor.device) for array, tensor in pairs]

    return call.then(tensors_from)


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to put all ranks' tensors one behind the other, along the first dimension.

    That dimension may differ between ranks; the others and the dtype may not.
    Returns a handle. Raises ValueError for a tensor without dimensions.
    """
    return start(gathering_call(calls.allgather, [tensor], name, process_set).then(first))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to put all ranks' tensors one behind the other, for each tensor of a list.

    The first dimension may differ between ranks. Returns a handle for the list of results.
    """
    return start(gathering_call(calls.allgather, tensors, name, process_set))


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
    call = alltoall_call(tensor, splits, name, process_set)
    return start(call.then(first) if splits is None else call)


def alltoall_call(tensor: torch.Tensor, splits: Any, name: str | None, process_set) -> calls.Call:
    """`alltoall_async` as a call whose result has the numbers of rows in any case."""
    (place,), device = _places([tensor], "alltoall")
    numbers = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    call = calls.alltoall(place.array, numbers, name, process_set, device)
    return call.then(lambda arrays: tuple(from_array(a).to(tensor.device) for a in arrays))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce a tensor over all ranks and to leave each with its share of the rows.

    By default it is the mean. Where the rows can't be shared out evenly, the first ranks get one
    more. Returns a handle.
    """
    options = (name, op, prescale_factor, postscale_factor, process_set)
    return start(gathering_call(calls.reducescatter, [tensor], *options).then(first))


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce the tensors of a list over all ranks, and keep this rank's share of rows.

    By default it is the mean. Returns a handle for the list of results.
    """
    options = (name, op, prescale_factor, postscale_factor, process_set)
    return start(gathering_call(calls.reducescatter, tensors, *options))


def join(device: int = -1) -> int:
    """Out of data: go along with the other ranks' allreduces, with zeros, until all have joined.

    Returns the last rank that joined. `device` is accepted for compatibility.
    """
    return calls.join()
