"""A world or a process set of a single rank: what its collectives come to."""

import numpy as np

from hvdlite.reduction import multiply
from hvdlite.request import Request


def run_alone(request: Request) -> None:
    """Finish a request without any other rank."""
    what = request.descriptor
    for source, target in zip(request.inputs, request.outputs, strict=False):
        if target is not source:
            target[:] = source
        if what.kind == "allreduce":
            multiply(target, what.prescale * what.postscale)
    if what.kind in ("exchange", "survey"):
        request.result = [request.item]
    elif what.kind in ("allgather", "alltoall"):
        request.result = request.inputs[0].copy(), np.array(request.item)
    elif what.kind == "reducescatter":
        request.result = request.inputs[0].copy()
        multiply(request.result, what.prescale * what.postscale)
    elif what.kind == "join":
        request.result = 0
    request.finish()
