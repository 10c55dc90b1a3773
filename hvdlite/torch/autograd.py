"""The blocking collectives, which gradients flow through.

The gradient of a collective is a collective. As in Horovod (since 0.21) the loss is understood as
the mean over ranks of each rank's own loss: what flows back through an allgather or a broadcast is
averaged, and through an allreduce it is reduced with the same operation.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvdlite.calls import operation, single
from hvdlite.compression import compressed
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.torch import ops
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.handles import synchronize


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, options: dict[str, Any], name: str | None, *tensors: torch.Tensor):
        ctx.options = options
        return tuple(synchronize(ops.grouped_allreduce_async(tensors, name=name, **options)))

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        reduced = _Allreduce.apply(ctx.options, None, *gradients)
        return (None, None, *reduced)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, process_set: ProcessSet, name: str | None, *tensors: torch.Tensor):
        gathered = tuple(synchronize(ops.grouped_allgather_async(tensors, name, process_set)))
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return gathered

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        mine = torch.tensor([ctx.rows])
        rows = synchronize(ops.allgather_async(mine, process_set=ctx.process_set))
        before = rows[: ctx.process_set.rank()].sum(0).tolist()
        options = {"process_set": ctx.process_set}
        reduced = _Allreduce.apply(options, None, *gradients)
        pieces = [
            gradient.narrow(0, start, count)
            for gradient, start, count in zip(reduced, before, ctx.rows, strict=True)
        ]
        return (None, None, *pieces)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: torch.Tensor, root_rank: int, name: str | None, process_set):
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        (reduced,) = _Allreduce.apply({"process_set": ctx.process_set}, None, gradient)
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
    def forward(ctx, options: dict[str, Any], name: str | None, *tensors: torch.Tensor):
        ctx.options = options
        return tuple(synchronize(ops.grouped_reducescatter_async(tensors, name, **options)))

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        options = ctx.options
        factor = options["prescale_factor"] * options["postscale_factor"]
        if options["op"] == ops.Sum:
            factor *= options["process_set"].size()
        if factor != 1.0:
            gradients = [gradient * factor for gradient in gradients]
        return (None, None, *_Allgather.apply(options["process_set"], None, *gradients))


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
    """Reduce tensors over all ranks into new ones; see `grouped_allreduce_async_`."""
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    options = {"op": operation(average, op), "process_set": process_set, **scales}
    return compressed(lambda x: _Allreduce.apply(options, name, *x), tensors, compression)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allgather` for several tensors at once. Differentiable."""
    for tensor in tensors:
        ops.check_tensor(tensor, "allgather")
    return list(_Allgather.apply(process_set, name, *tensors))


allreduce = single(grouped_allreduce, "allreduce")
allgather = single(grouped_allgather, "allgather")


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The root's tensor, as a new one. Differentiable: only the root gets a gradient."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send the i-th stretch of rows to rank i; see `alltoall_async`. Differentiable."""
    ops.check_tensor(tensor, "alltoall")
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    if splits is None:
        return output
    return output, received.to(getattr(splits, "device", "cpu"))


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` for several tensors at once. Differentiable."""
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    options = {"op": op, "process_set": process_set, **scales}
    return compressed(lambda x: _Reducescatter.apply(options, name, *x), tensors, compression)


reducescatter = single(grouped_reducescatter, "reducescatter")


def _blocking(start: Callable[..., int], name: str) -> Callable[..., Any]:
    """The function that starts a call with `start` and waits for its result."""

    @functools.wraps(start)
    def call(*args: Any, **kwargs: Any) -> Any:
        return synchronize(start(*args, **kwargs))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{start.__name__}`, and wait for the result."
    return call


grouped_allreduce_ = _blocking(ops.grouped_allreduce_async_, "grouped_allreduce_")
allreduce_ = single(grouped_allreduce_, "allreduce_")
broadcast_ = _blocking(ops.broadcast_async_, "broadcast_")
