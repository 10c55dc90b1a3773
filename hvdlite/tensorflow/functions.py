"""Start all ranks from the same state: variables and objects."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import calls, objects
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.tensorflow import gpu
from hvdlite.tensorflow.graph import as_tensorflow, call, name_of
from hvdlite.tensorflow.ops import as_tensors


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables with those of rank `root_rank`; in a graph, the operation that does it.

    An empty list is no error. Raises ValueError if `root_rank` is not a rank of the process set.
    `inplace` is accepted for compatibility.
    """
    variables = list(variables)
    as_tensorflow(calls.check_root, root_rank, process_set)
    name = name_of("broadcast_variables", None)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        started = []
        for i, array in enumerate(arrays):
            each = name and f"{name}.{i}"
            copy, device = gpu.copy_of(array), gpu.device_of(array)
            started.append(calls.broadcast(copy, root_rank, each, process_set, device))
        return [each.wait() for each in started]

    values = as_tensors(variables, "broadcast_variables")
    dtypes, shapes = [value.dtype for value in values], [value.shape for value in values]
    place = gpu.device_for(values)
    results = call(run, values, dtypes, shapes, place) if values else []
    assigned = [
        variable.assign(result) for variable, result in zip(variables, results, strict=True)
    ]
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with those of rank `root_rank`; returns their new values."""
    done = broadcast_variables(variables, root_rank, process_set)
    with tf.control_dependencies([] if done is None else [done]):
        return [tf.identity(variable) for variable in variables]


# The runtime sends objects without the help of a graph, so a session is not needed.


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of rank `root_rank`, on every rank; anything that cloudpickle can carry."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that gives every rank the object that it was called with on rank `root_rank`."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """All ranks' objects, in rank order."""
    return objects.allgather_object(obj, name, process_set)
