"""The kinds of call: how each is run once the ranks have agreed on it, and what else it may do.

One row of `KINDS` is all that the engine, the agreement and fusion know of a kind.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdlite.collectives.adasum import adasum
from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import Finish, multiply
from hvdlite.engine.timeline import COPY_IN, COPY_OUT
from hvdlite.memory import slices
from hvdlite.request import ADASUM, Descriptor, Request

if TYPE_CHECKING:
    from hvdlite.engine.channel import Channel


@dataclass(slots=True)
class Kind:
    """How calls of a kind are run, and what else the runtime has to know of them.

    `run` gets the group's channel, the algorithms to use, and calls with the same fusion key, or a
    single one where there is none. `alone` gives a call's result where there is one rank.
    """

    run: Callable[..., None]
    alone: Callable[[Request], Any] = lambda request: None
    fusion_key: Callable[[Descriptor], tuple | None] = lambda descriptor: None
    after_join: bool = False  # a rank without data can take part: with zeros, or with nothing


def _allreduce(channel: "Channel", collectives: Collectives, *batch: Request) -> None:
    descriptor, rows, size = batch[0].descriptor, batch[0].shared_rows, channel.group.size
    if rows is not None and not channel.has_stand_ins:
        # The others may read this rank's row since the agreement, so that it can't be scaled any
        # more: both factors are applied to the sum.
        finish = Finish(descriptor.op, descriptor.prescale * descriptor.postscale, size)
        with channel.activity(batch, collectives.name, "ALLREDUCE"):
            collectives.allreduce_rows(rows, descriptor.op, finish)
        return
    outputs = [array for request in batch for array in request.outputs]
    buffer = outputs[0]
    if len(outputs) > 1:
        buffer = np.empty_like(buffer, shape=(sum(len(array) for array in outputs),))
    with channel.activity(batch, COPY_IN):
        inputs = [array for request in batch for array in request.inputs]
        if len(outputs) > 1 or inputs[0] is not buffer:
            slices.pack(inputs, buffer)
        if descriptor.prescale != 1.0:
            pieces = slices.slices_of([len(array) for array in inputs])
            for request, piece in zip(batch, pieces, strict=True):  # one tensor each
                if not request.is_stand_in:
                    multiply(buffer[piece], descriptor.prescale)
    finish = Finish(descriptor.op, descriptor.postscale, size)
    if descriptor.op == ADASUM:
        with channel.activity(batch, "ADASUM", "ALLREDUCE"):
            adasum(channel.group, buffer, [len(array) for array in outputs])
            finish(buffer)
    else:
        with channel.activity(batch, collectives.name, "ALLREDUCE"):
            collectives.allreduce(buffer, descriptor.op, finish)
    if len(outputs) > 1:
        with channel.activity(batch, COPY_OUT):
            slices.unpack(buffer, outputs)


def _allreduce_key(descriptor: Descriptor) -> tuple | None:
    if descriptor.packed:
        return None
    scales = descriptor.prescale, descriptor.postscale
    return descriptor.op, descriptor.dtype, *scales, descriptor.device


def _broadcast(channel: "Channel", collectives: Collectives, *batch: Request) -> None:
    with collectives.together():
        for request in batch:
            root = channel.group.ranks.index(request.descriptor.root)
            collectives.broadcast(request.outputs[0], root)


def _broadcast_key(descriptor: Descriptor) -> tuple:
    return "broadcast", descriptor.device


def _allgather(channel: "Channel", collectives: Collectives, request: Request) -> None:
    rows = channel.group.allgather_numbers(request.counts)[:, 0]
    counts = (rows * math.prod(request.descriptor.shapes[0])).tolist()
    request.result = collectives.allgather(request.inputs[0], counts), rows


def _alltoall(channel: "Channel", collectives: Collectives, request: Request) -> None:
    splits = channel.group.allgather_numbers(request.counts)
    row, index = math.prod(request.descriptor.shapes[0]), channel.group.index
    send, receive = (splits[index] * row).tolist(), (splits[:, index] * row).tolist()
    received = collectives.alltoall(request.inputs[0], send, receive)
    request.result = received, splits[:, index]


def _reducescatter(channel: "Channel", collectives: Collectives, request: Request) -> None:
    """Rows that can't be shared out evenly: the first ranks get one more."""
    descriptor, size = request.descriptor, channel.group.size
    rows, *row = descriptor.shapes[0]
    counts = [(rows // size + (i < rows % size)) * math.prod(row) for i in range(size)]
    data = request.inputs[0]
    if descriptor.prescale != 1.0:
        data = data.copy()
        multiply(data, descriptor.prescale)
    finish = Finish(descriptor.op, descriptor.postscale, size)
    request.result = collectives.reducescatter(data, counts, descriptor.op, finish)


def _allocate(channel: "Channel", collectives: Collectives, request: Request) -> None:
    request.result = collectives.allocate(request.descriptor.shapes[0][0])


def _join(channel: "Channel", collectives: Collectives, request: Request) -> None:
    request.result = channel.last_to_join()
    channel.recount()  # ranks that joined early have made fewer calls


def _exchange(channel: "Channel", collectives: Collectives, request: Request) -> None:
    request.result = channel.group.allgather_object(request.payload)


def _nothing(channel: "Channel", collectives: Collectives, request: Request) -> None:
    """Agreeing on it was all there is to do."""


# For a single rank


def _kept(request: Request) -> None:
    """The outputs are the inputs, scaled."""
    for source, target in zip(request.inputs, request.outputs, strict=True):
        if target is not source:
            target[:] = source
        multiply(target, request.descriptor.prescale * request.descriptor.postscale)


def _copied(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """The input, and its number of rows."""
    return request.inputs[0].copy(), np.array(request.counts)


def _own_share(request: Request) -> np.ndarray:
    """The input, scaled."""
    result = request.inputs[0].copy()
    multiply(result, request.descriptor.prescale * request.descriptor.postscale)
    return result


def _own_payload(request: Request) -> list[Any]:
    return [request.payload]


KINDS = {
    "allreduce": Kind(_allreduce, _kept, _allreduce_key, after_join=True),
    "broadcast": Kind(_broadcast, _kept, _broadcast_key),
    "allgather": Kind(_allgather, _copied),
    "alltoall": Kind(_alltoall, _copied),
    "reducescatter": Kind(_reducescatter, _own_share),
    "allocate": Kind(_allocate, after_join=True),
    "barrier": Kind(_nothing, after_join=True),
    "join": Kind(_join, lambda request: 0),
    # Every rank's object to all of them.
    "exchange": Kind(_exchange, _own_payload),
    "survey": Kind(_exchange, _own_payload, after_join=True),
    "broadcast_object": Kind(_exchange, _own_payload),
    "allgather_object": Kind(_exchange, _own_payload),
    # For these it is the agreement on the arguments that counts; the rest is in basics.py.
    "add_process_set": Kind(_nothing),
    "remove_process_set": Kind(_nothing),
}
