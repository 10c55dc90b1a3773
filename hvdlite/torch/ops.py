"""The collectives that move tensors: broadcast, allgather, alltoall and reducescatter; and join.

Those whose names end in `_async` return a handle. Gradients flow through the others; see
`allreduce_ops`.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from hvdlite import calls
from hvdlite.basics import rank
from hvdlite.compression import compress, decompress
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE, SUM
from hvdlite.torch.allreduce_ops import differentiable, first, grouped_allreduce
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.handles import start
from hvdlite.torch.tensors import check_tensor, from_array, places

# Broadcast


def broadcast_call(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> calls.Call:
    """Start to overwrite a tensor with the root's; the result is the tensor."""
    (place,), device = places([tensor], "broadcast")
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


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of rank `root_rank`, as a new one. Gradients flow back to the root only.

    Every rank gives a tensor of the same shape and dtype.
    Raises ValueError if `root_rank` is not a rank of the process set.
    """

    def run(given: torch.Tensor) -> list[torch.Tensor]:
        check_tensor(given, "broadcast")
        output = given.detach().clone(memory_format=torch.contiguous_format)
        return [broadcast_call(output, root_rank, name, process_set).wait()]

    def back(gradient: torch.Tensor) -> list[torch.Tensor]:
        (mean,) = grouped_allreduce([gradient], process_set=process_set)
        return [mean if rank() == root_rank else torch.zeros_like(mean)]

    return differentiable(run, back, [tensor])[0]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite a tensor with that of rank `root_rank`, and return it.

    Every rank gives a tensor of the same shape and dtype.
    Raises ValueError if `root_rank` is not a rank of the process set.
    """
    return broadcast_call(tensor, root_rank, name, process_set).wait()


# Allgather, alltoall, reducescatter: the result has another shape


def gathering_call(
    collective: Callable[..., calls.Call], tensors: Sequence[torch.Tensor], *options: Any
) -> calls.Call:
    """Start a collective whose results become new tensors on the device of the inputs."""
    sources, device = places(tensors, collective.__name__)
    call = collective([place.array for place in sources], *options, device=device)

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


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All ranks' tensors, one behind the other along the first dimension, in rank order.

    That dimension may differ between ranks; the others and the dtype may not.
    Gradients flow through. Raises ValueError for a tensor without dimensions.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """All ranks' tensors, one behind the other, for each tensor of a list.

    The first dimension may differ between ranks. Gradients flow through.
    """
    rows: list[int] = []

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        gathered = gathering_call(calls.allgather, given, name, process_set).wait()
        rows.extend(tensor.shape[0] for tensor in given)
        return gathered

    def back(*gradients: torch.Tensor) -> list[torch.Tensor]:
        of_all = allgather(torch.tensor([rows]), process_set=process_set)
        before = of_all[: process_set.rank()].sum(0).tolist()
        means = grouped_allreduce(gradients, process_set=process_set)
        pieces = zip(means, before, rows, strict=True)
        return [gradient.narrow(0, start, count) for gradient, start, count in pieces]

    return differentiable(run, back, tensors)


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
    (place,), device = places([tensor], "alltoall")
    numbers = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    call = calls.alltoall(place.array, numbers, name, process_set, device)
    return call.then(lambda arrays: tuple(from_array(a).to(tensor.device) for a in arrays))


@overload
def alltoall(
    tensor: torch.Tensor, splits: None = ..., name: str | None = ..., process_set: ProcessSet = ...
) -> torch.Tensor: ...
@overload
def alltoall(
    tensor: torch.Tensor, splits: Any, name: str | None = ..., process_set: ProcessSet = ...
) -> tuple[torch.Tensor, torch.Tensor]: ...
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send the i-th stretch of rows to rank i; returns what came in, in rank order.

    `splits` are the stretches' numbers of rows; without it all are the same, and with it the
    number of rows from each rank is returned, too. Gradients flow through.
    Raises ValueError for splits that don't fit the tensor.
    """
    rows: list[torch.Tensor] = []  # from each rank

    def run(given: torch.Tensor) -> list[torch.Tensor]:
        output, received = alltoall_call(given, splits, name, process_set).wait()
        rows.append(received)
        return [output]

    def back(gradient: torch.Tensor) -> list[torch.Tensor]:
        return [alltoall(gradient, rows[0], process_set=process_set)[0]]

    (output,) = differentiable(run, back, [tensor])
    return output if splits is None else (output, rows[0].to(getattr(splits, "device", "cpu")))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = AVERAGE,
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
    op: int = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce the tensors of a list over all ranks, and keep this rank's share of rows.

    By default it is the mean. Returns a handle for the list of results.
    """
    options = (name, op, prescale_factor, postscale_factor, process_set)
    return start(gathering_call(calls.reducescatter, tensors, *options))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks, by default to the mean, and keep this rank's share of rows.

    Where the rows can't be shared out evenly, the first ranks get one more. Gradients flow through.
    """
    scales = (prescale_factor, postscale_factor)
    return grouped_reducescatter([tensor], name, compression, op, process_set, *scales)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce the tensors of a list over all ranks, and keep this rank's share of each one's rows.

    By default it is the mean. Gradients flow through.
    """
    options = (op, prescale_factor, postscale_factor, process_set)

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        return gathering_call(calls.reducescatter, given, name, *options).wait()

    def back(*gradients: torch.Tensor) -> list[torch.Tensor]:
        factor = prescale_factor * postscale_factor * (process_set.size() if op == SUM else 1)
        if factor != 1.0:
            gradients = [gradient * factor for gradient in gradients]
        return grouped_allgather(gradients, process_set=process_set)

    sent, contexts = compress(tensors, compression)
    return decompress(differentiable(run, back, sent), contexts, compression)


def join(device: int = -1) -> int:
    """Out of data: go along with the other ranks' allreduces, with zeros, until all have joined.

    Returns the last rank that joined. `device` is accepted for compatibility.
    """
    return calls.join()
