"""Python objects between ranks: anything that cloudpickle can carry."""

from typing import Any

import cloudpickle
import numpy as np

from hvdlite import calls
from hvdlite.basics import engine, process_set_number, rank
from hvdlite.exceptions import HorovodInternalError
from hvdlite.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on every rank.

    Raises HorovodInternalError on every rank if the root's object can't be pickled.
    """
    calls.check_root(root_rank, process_set, "broadcast_object")
    set_id, is_root = process_set.process_set_id, rank() == root_rank
    data, error = _pickled(obj) if is_root else (b"", None)
    root = process_set.ranks.index(root_rank)
    request = engine().call("broadcast_object", name, set_id, payload=(len(data), error))
    length, error = request.result[root]
    if error is not None:
        raise HorovodInternalError(f"broadcast_object on rank {root_rank}: {error}")
    content = np.empty(length, dtype=np.uint8)
    if is_root:
        content[:] = np.frombuffer(data, dtype=np.uint8)
    calls.broadcast(content, root_rank, f"{request.descriptor.key}.data", process_set).wait()
    return obj if is_root else cloudpickle.loads(content.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """All ranks' objects, in rank order.

    Raises HorovodInternalError on every rank if one rank's object can't be pickled.
    """
    data, error = _pickled(obj)
    set_id = process_set_number(process_set)
    gathered = engine().call("allgather_object", name, set_id, payload=(data, error)).result
    for number, (_, problem) in zip(process_set.ranks, gathered, strict=True):
        if problem is not None:
            raise HorovodInternalError(f"allgather_object on rank {number}: {problem}")
    return [cloudpickle.loads(part) for part, _ in gathered]


def _pickled(obj: Any) -> tuple[bytes, str | None]:
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:
        return b"", f"this {type(obj).__name__} can't be pickled: {error}"
