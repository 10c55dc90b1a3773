"""Collectives where TensorFlow computes: at once, or as an operation of the graph in the making.

In a graph the collective is a Python function that TensorFlow calls when its turn comes. Inside a
tf.function these calls keep the order of the program, so all ranks make them in the same one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import signals
from hvdlite.basics import engine
from hvdlite.exceptions import HorovodInternalError


class CollectiveError(HorovodInternalError, tf.errors.FailedPreconditionError):
    """What a failed collective raises outside of graphs: both that Horovod's programs catch."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class ArgumentError(ValueError, tf.errors.InvalidArgumentError):
    """What a wrong argument raises outside of graphs, where TensorFlow has the second of these."""

    def __init__(self, message: str):
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def as_tensorflow(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, whose errors are TensorFlow's as well."""
    try:
        return function(*args)
    except HorovodInternalError as error:
        raise CollectiveError(str(error)) from error
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def call(
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[Any] | None = None,
) -> list[tf.Tensor]:
    """The tensors that `function` makes of the arrays of `tensors`.

    `dtypes` and, as far as they are known, `shapes` are those of the results.
    Arrays that `function` gets must not be written to.
    """
    if tf.executing_eagerly():
        results = as_tensorflow(function, *[np.asarray(tensor) for tensor in tensors])
        return [tf.convert_to_tensor(result) for result in results]
    signals.watch()

    def body(*arrays: np.ndarray) -> list[np.ndarray]:
        try:
            return list(function(*map(np.asarray, arrays)))
        except HorovodInternalError as error:
            # TensorFlow shows the message with this line only, not with the runtime's own frames.
            raise HorovodInternalError(str(error)) from None

    make = tf.numpy_function if tf.inside_function() else _in_any_order
    with tf.device("/cpu:0"):
        results = make(body, list(tensors), list(dtypes))
    for result, shape in zip(results, shapes or (), strict=False):
        result.set_shape(shape)
    return results


def _in_any_order(
    body: Callable[..., list[np.ndarray]], tensors: list[Any], dtypes: list[tf.DType]
) -> list[tf.Tensor]:
    """`tf.numpy_function` for graphs of TensorFlow 1, which start operations in any order.

    Each of TensorFlow's few threads might wait inside a collective that the other ranks have not
    begun, since all of theirs wait inside others. A data set with threads of its own is the
    operation of TensorFlow that can wait without holding any of them.
    """

    def in_any_order(*arrays: np.ndarray) -> list[np.ndarray]:
        engine().waits.in_order = False
        return body(*arrays)

    source = tf.data.Dataset.from_tensors((tf.constant(0), *tensors))
    made = source.map(lambda _, *values: tuple(tf.numpy_function(in_any_order, values, dtypes)))
    shapes: dict[str, Any] = {"output_types": dtypes, "output_shapes": [None] * len(dtypes)}
    with_threads = tf.raw_ops.PrivateThreadPoolDataset(
        input_dataset=tf.data.experimental.to_variant(made), num_threads=1, **shapes
    )
    return list(tf.raw_ops.DatasetToSingleElement(dataset=with_threads, **shapes))


def name_of(kind: str, name: str | None) -> str | None:
    """The name of a call in the graph in the making, or None to count calls as they are made.

    A graph of TensorFlow 1 may run its operations in any order, so their names are fixed when it
    is made. A tf.function keeps the order but may be traced a second time on one rank only, so
    there the calls are counted when they are made.
    """
    if tf.executing_eagerly() or tf.inside_function():
        return name
    return tf.compat.v1.get_default_graph().unique_name(name or kind, mark_as_used=True)
