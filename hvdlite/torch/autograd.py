"""The blocking collectives, which gradients flow through.

The gradient of a collective is a collective. As in Horovod (since 0.21) the loss is understood as
the mean over ranks of each rank's own loss: what flows back through an allgather or a broadcast is
averaged, and through an allreduce it is reduced with the same operation.
"""

from collections.abc import Sequence
from typing import Any, overload

import torch

from hvdlite import calls
from hvdlite.calls import operation
from hvdlite.compression import compressed
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE, SUM
from hvdlite.torch import ops
from hvdlite.torch.compression import Compression, Compressor


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, options: tuple, name: str | None, *tensors: torch.Tensor):
        ctx.options = options  # op, prescale, postscale, process set
        outputs = [ops.new_like(tensor) for tensor in tensors]
        return tuple(ops.allreduce_call(tensors, outputs, None, name, *options).wait())

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        reduced = _Allreduce.apply(ctx.options, None, *gradients)
        return (None, None, *reduced)


def _mean(process_set: ProcessSet, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _Allreduce.apply((AVERAGE, 1.0, 1.0, process_set), None, *tensors)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, process_set: ProcessSet, name: str | None, *tensors: torch.Tensor):
        gathered = ops.gathering_call(calls.allgather, tensors, name, process_set).wait()
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        mine = torch.tensor([ctx.rows])
        rows = allgather(mine, process_set=ctx.process_set)
        before = rows[: ctx.process_set.rank()].sum(0).tolist()
        reduced = _mean(ctx.process_set, *gradients)
        pieces = [
            gradient.narrow(0, start, count)
            for gradient, start, count in zip(reduced, before, ctx.rows, strict=True)
        ]
        return (None, None, *pieces)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: torch.Tensor, root_rank: int, name: str | None, process_set):
        ctx.root_rank, ctx.process_set = root_rank, process_set
        ops.check_tensor(tensor, "broadcast")
        output = tensor.clone(memory_format=torch.contiguous_format)
        return ops.broadcast_call(output, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        (reduced,) = _mean(ctx.process_set, gradient)
        is_root = ctx.process_set.ranks[ctx.process_set.rank()] == ctx.root_rank
        return (reduced if is_root else torch.zeros_like(reduced)), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: torch.Tensor, splits: Any, name: str | None, process_set):
        output, received = ops.alltoall_call(tensor, splits, name, process_set).wait()
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, gradient: torch.Tensor, _):
        returned, _ = _Alltoall.apply(gradient, ctx.received, None, ctx.process_set)
        return returned, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, options: tuple, name: str | None, *tensors: torch.Tensor):
        ctx.options = options  # op, prescale, postscale, process set
        return tuple(ops.gathering_call(calls.reducescatter, tensors, name, *options).wait())

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        op, prescale, postscale, process_set = ctx.options
        factor = prescale * postscale * (process_set.size() if op == SUM else 1)
        if factor != 1.0:
            gradients = [gradient * factor for gradient in gradients]
        return (None, None, *_Allgather.apply(process_set, None, *gradients))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The mean of all ranks' tensors, or with `op` another reduction, as a new tensor.

    Every rank gives the same shape and dtype. The mean of integers is rounded toward zero.
    `prescale_factor` is applied before the reduction and `postscale_factor` after it.
    Gradients flow through: that of an allreduce is an allreduce.
    Raises HorovodInternalError, the same on every rank, where the ranks' calls don't fit.
    """
    scales = (prescale_factor, postscale_factor)
    return grouped_allreduce([tensor], average, name, compression, op, *scales, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The mean of all ranks' tensors, or with `op` another reduction, for a list of tensors.

    They travel together, in less time than one by one. Returns new tensors. Gradients flow through.
    """
    options = (operation(average, op), prescale_factor, postscale_factor, process_set)
    return compressed(lambda x: _Allreduce.apply(options, name, *x), tensors, compression)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite a tensor with the mean of all ranks' (or another reduction, `op`); returns it.

    Every rank gives the same shape and dtype. The mean of integers is rounded toward zero.
    `prescale_factor` is applied before the reduction and `postscale_factor` after it.
    """
    tensors, options = [tensor], (prescale_factor, postscale_factor, process_set)
    return ops.allreduce_call(tensors, tensors, average, name, op, *options).wait()[0]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Overwrite each tensor of a list with the mean of all ranks' (or `op`); returns the list."""
    options = (prescale_factor, postscale_factor, process_set)
    return ops.allreduce_call(tensors, tensors, average, name, op, *options).wait()


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
    for tensor in tensors:
        ops.check_tensor(tensor, "allgather")
    return list(_Allgather.apply(process_set, name, *tensors))


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
    return _Broadcast.apply(tensor, root_rank, name, process_set)


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
    return ops.broadcast_call(tensor, root_rank, name, process_set).wait()


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
    ops.check_tensor(tensor, "alltoall")
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    if splits is None:
        return output
    return output, received.to(getattr(splits, "device", "cpu"))


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
    return compressed(lambda x: _Reducescatter.apply(options, name, *x), tensors, compression)
