"""TensorFlow 1: graphs, sessions and optimizers of tf.compat.v1."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.basics import engine
from hvdlite.gradients.options import GradientOptions
from hvdlite.gradients.wrapping import wrap
from hvdlite.request import ADASUM
from hvdlite.tensorflow.functions import broadcast_variables
from hvdlite.tensorflow.gradients import GradientSync
from hvdlite.tensorflow.ops import grouped_allreduce


def in_session() -> bool:
    """Whether this is a program of TensorFlow 1, whose tensors have values in a session only."""
    return not tf.executing_eagerly() and not tf.inside_function()


def evaluated(result: Any) -> Any:
    """The result; in a graph of TensorFlow 1, its value."""
    return tf.compat.v1.keras.backend.get_session().run(result) if in_session() else result


def in_any_order(
    body: Callable[..., list[np.ndarray]], tensors: list[Any], dtypes: list[tf.DType]
) -> list[tf.Tensor]:
    """`tf.numpy_function` for graphs of TensorFlow 1, which start operations in any order.

    Each of TensorFlow's few threads might wait inside a collective that the other ranks have not
    begun, since all of theirs wait inside others. A data set with threads of its own is the
    operation of TensorFlow that can wait without holding any of them.
    """

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        engine().waits.in_order = False
        return body(*arrays)

    source = tf.data.Dataset.from_tensors((tf.constant(0), *tensors))
    made = source.map(lambda _, *values: tuple(tf.numpy_function(run, values, dtypes)))
    shapes: dict[str, Any] = {"output_types": dtypes, "output_shapes": [None] * len(dtypes)}
    with_threads = tf.raw_ops.PrivateThreadPoolDataset(
        input_dataset=tf.data.experimental.to_variant(made), num_threads=1, **shapes
    )
    return list(tf.raw_ops.DatasetToSingleElement(dataset=with_threads, **shapes))


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
    """Overwrites all variables with those of rank `root_rank` when a session is created.

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


class DistributedMixin:
    """The methods that stand in front of those of the wrapped optimizer's class."""

    _sync: GradientSync
    _computed: bool
    _local: set[Any]

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._local.add(variable.ref())

    def _reduced(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        gradients, variables = zip(*grads_and_vars, strict=True)
        is_local = [variable.ref() in self._local for variable in variables]
        names = [variable.name for variable in variables]
        return list(zip(self._sync(gradients, is_local, names), variables, strict=True))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The gradients, reduced over the ranks, each with its variable."""
        pairs = super().compute_gradients(*args, **kwargs)
        self._computed = True
        return self._reduced(pairs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Update the variables. Gradients that another function computed are reduced first."""
        pairs, apply = list(grads_and_vars), super().apply_gradients
        if not self._computed:
            pairs = self._reduced(pairs)
        self._computed = not tf.executing_eagerly() and self._computed
        if self._sync.passes == 1:
            return apply(pairs, *args, **kwargs)
        ready = self._sync.ready
        return tf.cond(ready, lambda: tf.group(apply(pairs, *args, **kwargs)), tf.no_op)


class AdasumMixin:
    """Each rank steps alone, then the ranks combine what the steps have changed."""

    _sync: GradientSync

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Update the variables by the Adasum of all ranks' steps."""
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        before = [tf.identity(variable) for variable in variables]
        with tf.control_dependencies(before):
            step = super().apply_gradients(pairs, *args, **kwargs)
        with tf.control_dependencies([] if step is None else [step]):
            changes = [
                variable.read_value() - start
                for variable, start in zip(variables, before, strict=True)
            ]
        options = self._sync.options
        given = {"compression": options.compression, "process_set": options.process_set}
        changes = grouped_allreduce(changes, op=ADASUM, **given)
        assigned = [
            variable.assign(start + change)
            for variable, start, change in zip(variables, before, changes, strict=True)
        ]
        return None if tf.executing_eagerly() else tf.group(*assigned)


def distribute(optimizer: tf.compat.v1.train.Optimizer, options: GradientOptions) -> Any:
    """The optimizer, which steps with the gradients of all ranks."""
    is_adasum = options.op == ADASUM and options.active
    wrapped = wrap(optimizer, AdasumMixin if is_adasum else DistributedMixin)
    wrapped._sync, wrapped._computed, wrapped._local = GradientSync(options), False, set()
    return wrapped
