"""Allreduce of tensors: started with a handle for it, or waited for; of one tensor or of several.

Gradients flow through the blocking calls. The gradient of a collective is a collective. As in
Horovod (since 0.21) the loss is understood as the mean over ranks of each rank's own loss: what
flows back through an allgather or a broadcast is averaged, and through an allreduce it is reduced
with the same operation.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from hvdlite import calls
from hvdlite.calls import operation
from hvdlite.compression import compress, decompress
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.handles import start
from hvdlite.torch.tensors import Place, places

first = itemgetter(0)  # makes the result of a call for a list of one tensor that tensor


class _Collective(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run: Callable, back: Callable, *tensors: torch.Tensor):
        ctx.back = back
        return tuple(run(*tensors))

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):
        return (None, None, *ctx.back(*gradients))


def differentiable(
    run: Callable[..., Sequence[torch.Tensor]],
    back: Callable[..., Sequence[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """`run(*tensors)`, with the gradients that `back(*gradients)` gives the tensors."""
    if needs_gradients(tensors):
        return list(_Collective.apply(run, back, *tensors))
    return list(run(*tensors))


def needs_gradients(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether gradients are to flow to any of the tensors."""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def allreduce_call(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    average: bool | None,
    name: str | None,
    op: int | None,
    *options: Any,
) -> calls.Call:
    """Start to reduce tensors; the result is the list of them, or of new ones.

    `options` are the factors before and after the reduction, and the process set.
    """
    op = operation(average, op)
    sources, device = places(tensors, "allreduce")
    targets = sources if in_place else [Place(_new_like(tensor), device) for tensor in tensors]
    arrays, into = [place.array for place in sources], [place.array for place in targets]
    call = calls.allreduce(arrays, into, name, op, *options, device)
    return call.then(lambda _: [place.give_back() for place in targets])


def _new_like(tensor: torch.Tensor) -> torch.Tensor:
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
    """Start to reduce a tensor in place over all ranks; returns a handle for it.

    Every rank gives the same name, shape and dtype. With op=Average (the default) the result is
    the sum divided by the number of ranks, for integers rounded toward zero.
    `prescale_factor` is applied before the reduction and `postscale_factor` after it.
    """
    options = (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call([tensor], True, average, name, op, *options).then(first))


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
    return start(allreduce_call(tensors, True, average, name, op, *options))


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
    options = (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call([tensor], False, average, name, op, *options).then(first))


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
    options = (prescale_factor, postscale_factor, process_set)
    return start(allreduce_call(tensors, False, average, name, op, *options))


# Blocking


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
    sent, contexts = compress(tensors, compression)
    if needs_gradients(sent):
        reduced = differentiable(
            lambda *given: allreduce_call(given, False, None, name, *options).wait(),
            lambda *given: grouped_allreduce(given, None, None, Compression.none, *options),
            sent,
        )
    else:  # as nearly always: straight on
        reduced = allreduce_call(sent, False, None, name, *options).wait()
    return decompress(reduced, contexts, compression)


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
    options = (prescale_factor, postscale_factor, process_set)
    return allreduce_call([tensor], True, average, name, op, *options).wait()[0]


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
    return allreduce_call(tensors, True, average, name, op, *options).wait()
