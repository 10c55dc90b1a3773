"""What collectives come to in a world or a process set of a single rank: the result of each."""

from typing import Any

import numpy as np

from hvdlite.collectives.reduction import multiply
from hvdlite.request import Request


def nothing(request: Request) -> None:
    """The call is done."""


def moved(request: Request) -> None:
    """The outputs are the inputs."""
    for source, target in zip(request.inputs, request.outputs, strict=True):
        if target is not source:
            target[:] = source


def reduced(request: Request) -> None:
    """The outputs are the inputs, scaled."""
    moved(request)
    for target in request.outputs:
        multiply(target, request.descriptor.prescale * request.descriptor.postscale)


def gathered(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """The input, and its number of rows."""
    return request.inputs[0].copy(), np.array(request.counts)


def share(request: Request) -> np.ndarray:
    """The input, scaled."""
    result = request.inputs[0].copy()
    multiply(result, request.descriptor.prescale * request.descriptor.postscale)
    return result


def payloads(request: Request) -> list[Any]:
    """The one object."""
    return [request.payload]


def last_to_join(request: Request) -> int:
    """The one rank."""
    return 0
