"""The functions of the Keras bindings, for the package `keras` and for tf.keras."""

from typing import Any, TypeVar

from hvdlite.compression import NoneCompressor
from hvdlite.gradients.options import GradientOptions, check_groups
from hvdlite.keras.optimizer import backend, distribute
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE, SUM

_Optimizer = TypeVar("_Optimizer")


def DistributedOptimizer(
    optimizer: _Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Any = None,
) -> _Optimizer:
    """Wrap an optimizer of Keras so that it steps with the gradients of all ranks.

    The result is of the optimizer's class, under its name, and shares all its attributes.

    Args:
        compression: `Compression.none`, `.fp16`, `.bf16`, or a Compressor of one's own.
        sparse_as_dense: reduce sparse gradients as dense ones.
        gradient_predivide_factor: with Average, divide by this before the sum and by size/this
            after.
        op: Average or Sum.
        backward_passes_per_step: gradients of so many batches are added up locally first, and
            divided by that number with average_aggregated_gradients.
        process_set: the ranks that train this model together.
        local_layers: layers whose gradients stay local, divided by the number of ranks with
            scale_local_gradients.

    The other arguments are accepted for compatibility: all gradients are reduced in one call.

    Raises TypeError for what is no optimizer, ValueError for arguments that make no sense.
    """
    check_groups(num_groups, groups)
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
    return distribute(optimizer, options, local_layers)


PartialDistributedOptimizer = DistributedOptimizer


# Collectives on values: numbers, lists, arrays and tensors


def _tensor_and_ops(value: Any) -> tuple[Any, Any]:
    """The value as a tensor of Keras's backend, and the binding that moves it."""
    if backend() == "torch":
        import torch

        import hvdlite.torch

        return torch.as_tensor(value), hvdlite.torch
    import tensorflow as tf

    import hvdlite.tensorflow

    return tf.convert_to_tensor(value), hvdlite.tensorflow


def in_session() -> bool:
    """Whether this is a program of TensorFlow 1, whose tensors have values in a session only."""
    if backend() != "tensorflow":
        return False
    from hvdlite.tensorflow import v1

    return v1.in_session()


def _evaluated(result: Any) -> Any:
    """The result; in a graph of TensorFlow 1, its value."""
    if not in_session():
        return result
    from hvdlite.tensorflow import v1

    return v1.evaluated(result)


def read(variable: Any) -> Any:
    """What a variable holds, as a numpy array."""
    return _evaluated(variable) if in_session() else variable.numpy()


def write(variable: Any, value: Any) -> None:
    """Let a variable hold a number or an array."""
    if not in_session():
        variable.assign(value)
        return
    import tensorflow as tf

    tf.compat.v1.keras.backend.set_value(variable, value)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = NoneCompressor,
) -> Any:
    """The mean of all ranks' numbers, lists, arrays or tensors, or with `op` another reduction."""
    tensor, ops = _tensor_and_ops(value)
    op = SUM if average is False and op is None else op
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _evaluated(ops.allreduce(tensor, name=name, op=op, compression=compression, **scales))


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values (lists, arrays, tensors), joined along the first dimension."""
    tensor, ops = _tensor_and_ops(value)
    return _evaluated(ops.allgather(tensor, name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank `root_rank`, on every rank."""
    tensor, ops = _tensor_and_ops(value)
    return _evaluated(ops.broadcast(tensor, root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: int = AVERAGE) -> Any:
    """Reduce a value over all ranks, by default to the mean, and keep this rank's share of rows."""
    tensor, ops = _tensor_and_ops(value)
    return _evaluated(ops.reducescatter(tensor, name=name, op=op))


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrite all variables of a TensorFlow 1 graph with those of rank `root_rank`.

    Raises RuntimeError in eager code, where BroadcastGlobalVariablesCallback does it.
    """
    from hvdlite.tensorflow.v1 import broadcast_global_variables as operation

    return _evaluated(operation(root_rank))
