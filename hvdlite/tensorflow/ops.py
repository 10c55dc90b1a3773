"""The collectives on TensorFlow's tensors: in eager code, in a tf.function, in a graph of v1.

Gradients flow through all of them. As in Horovod, the loss is understood as the mean over ranks
of each rank's own loss; see `hvdlite.torch.allreduce_ops`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import basics, calls
from hvdlite.basics import process_set_number
from hvdlite.compression import compress, decompress
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM
from hvdlite.tensorflow import gpu
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.graph import as_tensorflow, call, name_of

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT


def as_tensors(values: Sequence[Any], kind: str) -> list[tf.Tensor]:
    """The values as tensors that can be sent; TypeError for others, before anything is agreed."""
    tensors = []
    for value in values:
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            raise TypeError(
                f"{kind} takes a dense tensor, not a {type(value).__name__}: give it "
                "value.to_tensor() or tf.sparse.to_dense(value), or send it with allgather_object"
            )
        tensors.append(tf.convert_to_tensor(value))
        dtype = tensors[-1].dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool):
            raise TypeError(
                f"{kind} takes tensors of numbers, not of dtype {dtype.name}; Python objects and "
                "strings go by broadcast_object and allgather_object"
            )
    return tensors


def _any_rows(tensor: tf.Tensor) -> tf.TensorShape:
    """A tensor's shape, as far as it is known, with any number of rows."""
    return tf.TensorShape([None]).concatenate(tensor.shape[1:]) if tensor.shape.rank else None


def _differentiable(
    tensors: Sequence[tf.Tensor],
    forward: Callable[..., list[tf.Tensor]],
    backward: Callable[..., list[Any]],
) -> list[tf.Tensor]:
    """`forward(*tensors)`, with the gradients that `backward(*gradients)` gives its inputs."""

    @tf.custom_gradient
    def operation(*inputs: tf.Tensor):
        def gradient(*found: Any) -> list[Any]:
            return backward(*[tf.convert_to_tensor(x) if x is not None else None for x in found])

        return forward(*inputs), gradient

    results = operation(*tensors)
    return list(results) if isinstance(results, list | tuple) else [results]


# Allreduce


def _allreduce(tensors, name=None, op=AVERAGE, prescale=1.0, postscale=1.0, process_set=None):
    options = (op, prescale, postscale, process_set)
    name = name_of("allreduce", name)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        outputs = [gpu.empty_like(array) for array in arrays]
        device = gpu.device_of(arrays[0])
        return calls.allreduce(arrays, outputs, name, *options, device).wait()

    def forward(*inputs: tf.Tensor) -> list[tf.Tensor]:
        dtypes, shapes = [t.dtype for t in inputs], [t.shape for t in inputs]
        return call(run, inputs, dtypes, shapes, gpu.device_for(inputs))

    return _differentiable(tensors, forward, lambda *grads: _allreduce(grads, None, *options))


def _gather_slices(
    slices: Sequence[tf.IndexedSlices], op: int, scales: tuple, process_set: ProcessSet
) -> list[tf.IndexedSlices]:
    """The sum or mean of sparse tensors: all ranks' rows, one behind the other."""
    if op not in (AVERAGE, SUM):
        raise NotImplementedError(
            "tf.IndexedSlices can be reduced with op=hvd.Average or hvd.Sum only; "
            "sparse_as_dense=True makes the gradients dense"
        )
    if scales != (1.0, 1.0):
        raise NotImplementedError("tf.IndexedSlices can't be scaled; use sparse_as_dense=True")
    values = grouped_allgather([each.values for each in slices], process_set=process_set)
    indices = grouped_allgather([each.indices for each in slices], process_set=process_set)
    if op == AVERAGE:
        values = [value / tf.cast(process_set.size(), value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, each.dense_shape)
        for value, index, each in zip(values, indices, slices, strict=True)
    ]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The mean of all ranks' tensors, or with `op` another reduction. Gradients flow through.

    Takes a tensor, a variable, or IndexedSlices, which give IndexedSlices. Every rank gives the
    same shape and dtype. The mean of integers is rounded toward zero. The factors are applied
    before and after the reduction. `device_dense`, `device_sparse` and `ignore_name_scope` are
    accepted for compatibility. Raises TypeError for what are no numbers.
    """
    return grouped_allreduce(
        [tensor],
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """The mean of all ranks' tensors, or with `op` another reduction, for a list of tensors.

    They travel together, in less time than one by one. Gradients flow through.
    """
    op, scales = calls.operation(average, op), (prescale_factor, postscale_factor)
    as_tensorflow(process_set_number, process_set)
    sparse = {i: t for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)}
    dense = {i: t for i, t in enumerate(tensors) if i not in sparse}
    results: dict[int, Any] = {}
    if sparse:
        gathered = _gather_slices(list(sparse.values()), op, scales, process_set)
        results.update(zip(sparse, gathered, strict=True))
    if dense:
        sent, contexts = compress(as_tensors(dense.values(), "allreduce"), compression)
        reduced = _allreduce(sent, name, op, *scales, process_set)
        results.update(zip(dense, decompress(reduced, contexts, compression), strict=True))
    return [results[i] for i in range(len(results))]


# Allgather


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """All ranks' tensors, joined along the first dimension, which may differ between ranks.

    Gradients flow through.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """All ranks' tensors, joined along the first dimension, for each tensor of a list.

    Gradients flow through.
    """
    as_tensorflow(process_set_number, process_set)
    tensors, name = as_tensors(tensors, "allgather"), name_of("allgather", name)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        return calls.allgather(arrays, name, process_set, gpu.device_of(arrays[0])).wait()

    def forward(*inputs: tf.Tensor) -> list[tf.Tensor]:
        dtypes, shapes = [t.dtype for t in inputs], [_any_rows(t) for t in inputs]
        return call(run, inputs, dtypes, shapes, gpu.device_for(inputs))

    def backward(*grads: tf.Tensor) -> list[tf.Tensor]:
        reduced = _allreduce(grads, process_set=process_set)
        mine = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in tensors])
        rows = allgather(mine[tf.newaxis], process_set=process_set)
        starts = tf.reduce_sum(rows[: process_set.rank()], 0)
        pieces = zip(reduced, tf.unstack(starts), tf.unstack(mine), strict=True)
        return [gradient[start : start + count] for gradient, start, count in pieces]

    return _differentiable(tensors, forward, backward)


# Broadcast


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensor of rank `root_rank`. Gradients flow back to the root only.

    Raises ValueError if `root_rank` is not a rank of the process set.
    """
    as_tensorflow(calls.check_root, root_rank, process_set)
    name = name_of("broadcast", name)
    is_root = basics.rank() == root_rank

    def run(array: np.ndarray) -> list[np.ndarray]:
        copy, device = gpu.copy_of(array), gpu.device_of(array)
        return [calls.broadcast(copy, root_rank, name, process_set, device).wait()]

    def backward(gradient: tf.Tensor) -> list[tf.Tensor]:
        reduced = _allreduce([gradient], process_set=process_set)
        if is_root:
            return reduced
        with tf.control_dependencies(reduced):  # or a graph would leave the reduction out
            return [tf.zeros_like(gradient)]

    def forward(value: tf.Tensor) -> list[tf.Tensor]:
        return call(run, [value], [value.dtype], [value.shape], gpu.device_for([value]))

    return _differentiable(as_tensors([tensor], "broadcast"), forward, backward)[0]


# Alltoall and reducescatter


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the i-th stretch of rows to rank i. Gradients flow through.

    `splits` are the stretches' numbers of rows; without it all are the same. Returns what came in,
    in rank order, and with `splits` also the number of rows from each rank (int32).
    Raises ValueError for splits that don't fit.
    """
    as_tensorflow(process_set_number, process_set)
    name = name_of("alltoall", name)
    given = [] if splits is None else as_tensors([splits], "alltoall")
    given = [tf.cast(each, tf.int64) if each.dtype.is_integer else each for each in given]

    def run(array: np.ndarray, *counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = [each if isinstance(each, np.ndarray) else each.get() for each in counts]
        device = gpu.device_of(array)
        call = calls.alltoall(array, numbers[0] if numbers else None, name, process_set, device)
        received, rows = call.wait()
        return received, rows.astype(np.int64)

    received = []

    def forward(value: tf.Tensor) -> list[tf.Tensor]:
        dtypes, shapes = [value.dtype, tf.int64], [_any_rows(value), [process_set.size()]]
        place = gpu.device_for([value])
        output, counts = call(run, [value, *given], dtypes, shapes, place)
        counts = tf.cast(counts, tf.int32)
        received[:] = [counts]
        return [output, counts]

    def backward(gradient: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
        return [alltoall(gradient, received[0], process_set=process_set)[0]]

    output, counts = _differentiable(as_tensors([tensor], "alltoall"), forward, backward)
    return output if splits is None else (output, counts)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over all ranks, by default to the mean, and keep this rank's share of rows.

    Gradients flow through. Where the rows can't be shared out evenly, the first ranks get one more.
    """
    options = (process_set, ignore_name_scope, prescale_factor, postscale_factor)
    return grouped_reducescatter([tensor], device_dense, compression, op, name, *options)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduce the tensors of a list over all ranks, and keep this rank's share of each one's rows.

    By default it is the mean. Gradients flow through.
    """
    as_tensorflow(process_set_number, process_set)
    name = name_of("reducescatter", name)
    options = (op, prescale_factor, postscale_factor, process_set)
    factor = prescale_factor * postscale_factor * (process_set.size() if op == SUM else 1)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        return calls.reducescatter(arrays, name, *options, gpu.device_of(arrays[0])).wait()

    def forward(*inputs: tf.Tensor) -> list[tf.Tensor]:
        dtypes, shapes = [t.dtype for t in inputs], [_any_rows(t) for t in inputs]
        return call(run, inputs, dtypes, shapes, gpu.device_for(inputs))

    def backward(*grads: tf.Tensor) -> list[tf.Tensor]:
        return grouped_allgather(
            [g * tf.cast(factor, g.dtype) for g in grads], None, False, process_set
        )

    sent, contexts = compress(as_tensors(tensors, "reducescatter"), compression)
    return decompress(_differentiable(sent, forward, backward), contexts, compression)


# Meeting, and numbers that a graph reads when it runs


def join() -> Any:
    """Out of data: go along with the others' allreduces, with zeros, until all have joined.

    Returns the last rank that joined; in a graph, as a tensor.
    """
    result = call(lambda: [np.int32(calls.join())], [], [tf.int32], [()])[0]
    return int(result) if tf.executing_eagerly() else result


def _number_op(function: Callable[[], int]) -> tf.Tensor:
    return call(lambda: [np.int32(function())], [], [tf.int32], [()])[0]


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks, or of those of a process set, when the graph runs (int32)."""
    return _number_op(lambda: basics.process_set_of(process_set_id).size())


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank is in the process set when the graph runs, else 0 (int32)."""
    return _number_op(lambda: basics.process_set_of(process_set_id).included())


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host when the graph runs (int32)."""
    return _number_op(basics.local_size)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number among all ranks when the graph runs (int32)."""
    return _number_op(basics.rank)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number among the ranks of its host when the graph runs (int32)."""
    return _number_op(basics.local_rank)
