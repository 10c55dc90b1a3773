"""DistributedOptimizer for the optimizers of TensorFlow 1 (tf.compat.v1.train.Optimizer)."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.gradients import GradientReducer
from hvdlite.tensorflow.ops import grouped_allreduce


class _Methods:
    """What stands in front of the methods of the wrapped optimizer's class."""

    _reducer: GradientReducer
    _computed: bool
    _local: set[Any]

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._local.add(variable.ref())

    def _reduced(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        gradients, variables = zip(*grads_and_vars, strict=True)
        is_local = [variable.ref() in self._local for variable in variables]
        return list(zip(self._reducer(gradients, is_local), variables, strict=True))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The gradients, reduced over the ranks, each with its variable."""
        pairs = super(type(self), self).compute_gradients(*args, **kwargs)
        self._computed = True
        return self._reduced(pairs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Update the variables. Gradients that another function computed are reduced first."""
        pairs = list(grads_and_vars)
        if not self._computed:
            pairs = self._reduced(pairs)
        self._computed = not tf.executing_eagerly() and self._computed

        def apply() -> Any:
            return super(type(self), self).apply_gradients(pairs, *args, **kwargs)

        if self._reducer.passes == 1:
            return apply()
        return tf.cond(self._reducer.ready, lambda: tf.group(apply()), tf.no_op)


class _AdasumMethods:
    """Each rank steps alone, then the ranks combine what the steps have changed."""

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Update the variables by the Adasum of all ranks' steps."""
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        before = [tf.identity(variable) for variable in variables]
        with tf.control_dependencies(before):
            step = super(type(self), self).apply_gradients(pairs, *args, **kwargs)
        with tf.control_dependencies([] if step is None else [step]):
            changes = [
                variable.read_value() - start
                for variable, start in zip(variables, before, strict=True)
            ]
        options = {"compression": self._compression, "process_set": self._reducer.process_set}
        changes = grouped_allreduce(changes, op=ADASUM, **options)
        assigned = [
            variable.assign(start + change)
            for variable, start, change in zip(variables, before, changes, strict=True)
        ]
        return None if tf.executing_eagerly() else tf.group(*assigned)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer so that it steps with the gradients of all ranks.

    `optimizer` is one of tf.compat.v1.train or of Keras. The result is an instance of its class
    and shares all its attributes.

    compression: `Compression.none`, `.fp16`, `.bf16`, or a Compressor of one's own.
    sparse_as_dense: reduce IndexedSlices as dense gradients.
    backward_passes_per_step: gradients of so many calls are added up locally first, and divided
    by that number with average_aggregated_gradients.
    op: Average, Sum or (TensorFlow 1) Adasum, which combines the ranks' steps.
    gradient_predivide_factor: with Average, divide by this before the sum and by size/this after.
    scale_local_gradients: divide gradients of local variables by the number of ranks.
    The other arguments are accepted for compatibility: all gradients are reduced in one call.

    Raises ValueError or TypeError for arguments that make no sense.
    """
    if groups is not None and not isinstance(groups, list) and groups <= 0:
        raise ValueError("groups must be a positive number or a list of lists of tf.Variable")
    if op == ADASUM and (average_aggregated_gradients or backward_passes_per_step > 1):
        raise ValueError("op=hvd.Adasum can't accumulate gradients over several passes")
    options = {"compression": compression, "sparse_as_dense": sparse_as_dense, "op": op}
    options |= {"gradient_predivide_factor": gradient_predivide_factor, "process_set": process_set}
    options |= {"backward_passes_per_step": backward_passes_per_step}
    options |= {"average_aggregated_gradients": average_aggregated_gradients}
    options |= {"scale_local_gradients": scale_local_gradients}
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from hvdlite.keras.optimizer import distribute

        return distribute(optimizer, **options)
    reducer = GradientReducer(**options)
    methods = _AdasumMethods if op == ADASUM and reducer.active else _Methods
    own = {key: value for key, value in vars(methods).items() if not key.startswith("__")}
    wrapped = object.__new__(type(type(optimizer).__name__, (type(optimizer),), own))
    wrapped.__dict__ = optimizer.__dict__
    wrapped._reducer, wrapped._compression = reducer, compression
    wrapped._computed, wrapped._local = False, set()
    return wrapped
