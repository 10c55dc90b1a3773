"""The kinds of call: how each is run once the ranks have agreed on it, and what else it may do.

One row of `KINDS` is all that the engine, the agreement and fusion know of a kind.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdlite.collectives.adasum import adasum
from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.reduction import Finish, multiply
from hvdlite.engine import alone
from hvdlite.memory import slices
from hvdlite.request import ADASUM, Descriptor, Request
from hvdlite.runtime.groups import Group


@dataclass(slots=True)
class Work:
    """What a kind runs with."""

    group: Group
    collectives: Collectives
    has_stand_ins: bool  # whether a rank that has joined takes part
    last_to_join: Callable[[], int]
    recount: Callable[[], None]  # makes all ranks count their unnamed calls from the same numbers
    activity: Callable[..., AbstractContextManager]  # shows a part of the work in the timeline


def _stays_alone(descriptor: Descriptor) -> None:
    """The fusion key of calls that share a collective with no other."""


@dataclass(slots=True)
class Kind:
    """How calls of a kind are run, and what else the runtime has to know of them.

    `run` gets a batch of them with the same fusion key, or a single one where that is None.
    """

    run: Callable[[Work, list[Request]], None]
    alone: Callable[[Request], Any] = alone.nothing  # its result where there is one rank
    fusion_key: Callable[[Descriptor], tuple | None] = _stays_alone
    after_join: bool = False  # a rank without data can take part: with zeros, or with nothing


def _allreduce(work: Work, batch: list[Request]) -> None:
    what, rows = batch[0].descriptor, batch[0].shared_rows
    if rows is not None and not work.has_stand_ins:
        # The others may read this rank's row since the agreement, so that it can't be scaled any
        # more: both factors are applied to the sum.
        finish = Finish(what.op, what.prescale * what.postscale, work.group.size)
        with work.activity(batch, work.collectives.name, "ALLREDUCE"):
            work.collectives.allreduce_rows(rows, what.op, finish)
        return
    outputs = [array for request in batch for array in request.outputs]
    buffer = outputs[0]
    if len(outputs) > 1:
        buffer = np.empty_like(buffer, shape=(sum(len(array) for array in outputs),))
    with work.activity(batch, "MEMCPY_IN_FUSION_BUFFER"):
        inputs = [array for request in batch for array in request.inputs]
        if len(outputs) > 1 or inputs[0] is not buffer:
            slices.pack(inputs, buffer)
        if what.prescale != 1.0:
            pieces = slices.slices_of([len(array) for array in inputs])
            for request, piece in zip(batch, pieces, strict=True):  # one tensor each
                if not request.is_stand_in:
                    multiply(buffer[piece], what.prescale)
    finish = Finish(what.op, what.postscale, work.group.size)
    if what.op == ADASUM:
        with work.activity(batch, "ADASUM", "ALLREDUCE"):
            adasum(work.group, buffer, [len(array) for array in outputs])
            finish(buffer)
    else:
        with work.activity(batch, work.collectives.name, "ALLREDUCE"):
            work.collectives.allreduce(buffer, what.op, finish)
    if len(outputs) > 1:
        with work.activity(batch, "MEMCPY_OUT_FUSION_BUFFER"):
            slices.unpack(buffer, outputs)


def _allreduce_key(descriptor: Descriptor) -> tuple | None:
    if descriptor.packed:
        return None
    scales = descriptor.prescale, descriptor.postscale
    return descriptor.op, descriptor.dtype, *scales, descriptor.device


def _broadcast(work: Work, batch: list[Request]) -> None:
    with work.collectives.together():
        for request in batch:
            root = work.group.ranks.index(request.descriptor.root)
            work.collectives.broadcast(request.outputs[0], root)


def _broadcast_key(descriptor: Descriptor) -> tuple:
    return "broadcast", descriptor.device


def _allgather(work: Work, batch: list[Request]) -> None:
    (request,) = batch
    rows = work.group.allgather_numbers(request.counts)[:, 0]
    counts = (rows * math.prod(request.descriptor.shapes[0])).tolist()
    request.result = work.collectives.allgather(request.inputs[0], counts), rows


def _alltoall(work: Work, batch: list[Request]) -> None:
    (request,) = batch
    splits = work.group.allgather_numbers(request.counts)
    row, index = math.prod(request.descriptor.shapes[0]), work.group.index
    send, receive = (splits[index] * row).tolist(), (splits[:, index] * row).tolist()
    received = work.collectives.alltoall(request.inputs[0], send, receive)
    request.result = received, splits[:, index]


def _reducescatter(work: Work, batch: list[Request]) -> None:
    """Rows that can't be shared out evenly: the first ranks get one more."""
    (request,) = batch
    what, size = request.descriptor, work.group.size
    rows, *row = what.shapes[0]
    counts = [(rows // size + (i < rows % size)) * math.prod(row) for i in range(size)]
    data = request.inputs[0]
    if what.prescale != 1.0:
        data = data.copy()
        multiply(data, what.prescale)
    finish = Finish(what.op, what.postscale, size)
    request.result = work.collectives.reducescatter(data, counts, what.op, finish)


def _allocate(work: Work, batch: list[Request]) -> None:
    (request,) = batch
    request.result = work.collectives.allocate(request.descriptor.shapes[0][0])


def _join(work: Work, batch: list[Request]) -> None:
    (request,) = batch
    request.result = work.last_to_join()
    work.recount()  # ranks that joined early have made fewer calls


def _exchange(work: Work, batch: list[Request]) -> None:
    (request,) = batch
    request.result = work.group.allgather_object(request.payload)


def _nothing(work: Work, batch: list[Request]) -> None:
    """Agreeing on it was all there is to do."""


KINDS = {
    "allreduce": Kind(_allreduce, alone.reduced, _allreduce_key, after_join=True),
    "broadcast": Kind(_broadcast, alone.moved, _broadcast_key),
    "allgather": Kind(_allgather, alone.gathered),
    "alltoall": Kind(_alltoall, alone.gathered),
    "reducescatter": Kind(_reducescatter, alone.share),
    "allocate": Kind(_allocate, after_join=True),
    "barrier": Kind(_nothing, after_join=True),
    "join": Kind(_join, alone.last_to_join),
    # Every rank's object to all of them.
    "exchange": Kind(_exchange, alone.payloads),
    "survey": Kind(_exchange, alone.payloads, after_join=True),
    "broadcast_object": Kind(_exchange, alone.payloads),
    "allgather_object": Kind(_exchange, alone.payloads),
    # For these it is the agreement on the arguments that counts; the rest is in basics.py.
    "add_process_set": Kind(_nothing),
    "remove_process_set": Kind(_nothing),
}
