"""Tensor fusion: which calls share one collective.

A collective has a fixed cost however small the tensor is. Calls that were agreed on together and
that need the same treatment are therefore packed one behind the other into a flat buffer, up to
the fusion threshold. After Horovod (Sergeev and Del Balso, 2018).
"""

from collections.abc import Sequence

from hvdlite.engine.kinds import KINDS
from hvdlite.request import Request


def plan(requests: Sequence[Request], threshold: int) -> list[list[Request]]:
    """Split agreed calls into batches; each batch is one collective.

    Calls of a kind that share a fusion key, such as allreduces of the same dtype, operation, scale
    factors and device, share a batch, up to `threshold` bytes, whatever stands between them. All
    others stay alone. The plan follows from the descriptors alone, so every rank makes the same.
    """
    if len(requests) == 1:
        return [list(requests)]
    batches: list[list[Request]] = []
    open_batches: dict[tuple, tuple[list[Request], int]] = {}
    for request in requests:
        key = KINDS[request.descriptor.kind].fusion_key(request.descriptor)
        batch, filled = open_batches.get(key, ([], 0))
        filled += request.nbytes
        if not batch or filled > threshold:
            batch, filled = [], request.nbytes
            batches.append(batch)
        batch.append(request)
        if key is not None:
            open_batches[key] = (batch, filled)
    return batches
