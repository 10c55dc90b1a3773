"""Start all ranks from the same state: variables, at once or by a hook of a v1 session."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import calls, objects
from hvdlite.basics import process_set_number
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.tensorflow.graph import as_tensorflow, call, name_of


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables with the root's; in a graph, the operation that does it.

    An empty list is no error. Raises ValueError if `root_rank` is not a rank of the process set.
    `inplace` is accepted for compatibility.
    """
    variables = list(variables)
    as_tensorflow(process_set_number, process_set)
    as_tensorflow(calls.check_root, root_rank, process_set)
    name = name_of("broadcast_variables", None)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        started = []
        for i, array in enumerate(arrays):
            each = name and f"{name}.{i}"
            copy = np.array(array, order="C")
            started.append(calls.broadcast(copy, root_rank, each, process_set))
        return [each.wait() for each in started]

    values = [tf.convert_to_tensor(variable) for variable in variables]
    dtypes, shapes = [value.dtype for value in values], [value.shape for value in values]
    results = call(run, values, dtypes, shapes) if values else []
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
    """`broadcast_variables` that returns the variables' new values."""
    done = broadcast_variables(variables, root_rank, process_set)
    with tf.control_dependencies([] if done is None else [done]):
        return [tf.identity(variable) for variable in variables]


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that overwrites all variables of a TensorFlow 1 graph with the root's.

    Raises RuntimeError in eager code, where there are none.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() is for graphs of TensorFlow 1; call "
            "hvd.broadcast_variables(model.variables, root_rank=0) and the same for the "
            "optimizer's variables"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all variables with the root's when a session is created.

    So all ranks start from the root's values, new or from its checkpoint.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)


# The runtime sends objects without the help of a graph, so a session is not needed.


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on every rank; anything that cloudpickle can carry."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that broadcasts the object that it is given."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """All ranks' objects, in rank order."""
    return objects.allgather_object(obj, name, process_set)
