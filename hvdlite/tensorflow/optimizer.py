"""DistributedOptimizer, for the optimizers of Keras and those of TensorFlow 1."""

from typing import Any, TypeVar

import tensorflow as tf

from hvdlite.gradients.options import GradientOptions, check_groups
from hvdlite.keras.optimizer import distribute
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE
from hvdlite.tensorflow import v1
from hvdlite.tensorflow.compression import Compression

_Optimizer = TypeVar("_Optimizer")


def DistributedOptimizer(
    optimizer: _Optimizer,
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
) -> _Optimizer:
    """Wrap an optimizer so that it steps with the gradients of all ranks.

    `optimizer` is one of tf.compat.v1.train or of Keras. The result is an instance of its class
    and shares all its attributes.

    Args:
        compression: `Compression.none`, `.fp16`, `.bf16`, or a Compressor of one's own.
        sparse_as_dense: reduce IndexedSlices as dense gradients.
        backward_passes_per_step: gradients of so many calls are added up locally first, and divided
            by that number with average_aggregated_gradients.
        op: Average, Sum or (TensorFlow 1) Adasum, which combines the ranks' steps.
        gradient_predivide_factor: with Average, divide by this before the sum and by size/this
            after.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    The other arguments are accepted for compatibility: all gradients are reduced in one call.

    Raises ValueError or TypeError for arguments that make no sense.
    """
    check_groups(num_groups, groups)
    if op == ADASUM and (average_aggregated_gradients or backward_passes_per_step > 1):
        raise ValueError("op=hvd.Adasum can't accumulate gradients over several passes")
    options = GradientOptions(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    old = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    return v1.distribute(optimizer, options) if old else distribute(optimizer, options)
