"""The gradients of a step of TensorFlow, fed to the GradientReducer as arrays.

The arrays are on TensorFlow's own memory. They are copied into buckets, and the reduced gradients
are views of these.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import calls
from hvdlite.collectives.reduction import BFLOAT16
from hvdlite.compression import compress, decompress
from hvdlite.exceptions import HorovodInternalError
from hvdlite.gradients.options import GradientOptions
from hvdlite.gradients.reducer import Bucket, Gradient, GradientReducer
from hvdlite.request import ADASUM, digest, dtype_name
from hvdlite.tensorflow import gpu
from hvdlite.tensorflow.graph import call, name_of
from hvdlite.tensorflow.ops import grouped_allreduce

_ADVICE_ON_STEPS = (
    "Ranks must take the same number of steps. Where a callback ends the training early, all ranks "
    "must see the same metrics: put hvd.callbacks.MetricAverageCallback() before EarlyStopping."
)


@contextlib.contextmanager
def _advising() -> Iterator[None]:
    try:
        yield
    except HorovodInternalError as error:
        if "has ended" not in str(error):
            raise
        raise HorovodInternalError(f"{error} {_ADVICE_ON_STEPS}") from None


class _FlatReducer(GradientReducer):
    """Compares the ranks' gradients; the graph itself puts them into one tensor."""

    def make_buckets(self, gradients: Any, positions: Any) -> Sequence[Bucket]:
        return ()


class GradientSync:
    """Reduces lists of gradients; `None` stays `None`.

    With `keep` the reduced gradients are the caller's. Without it they are views of the buckets
    and valid until the next call, which saves a copy.
    With several passes, gradients are added up on this rank for so many calls first; `ready`
    then says (a bool tensor) whether the last call has reduced them.
    """

    def __init__(self, options: GradientOptions, keep: bool = True):
        self.options, self.keep = options, keep
        self.passes = options.backward_passes_per_step
        self.ready: Any = True
        self._reducers: dict[int, GradientReducer] = {}  # one for each list of shapes
        self._sums: list[np.ndarray] = []
        self._passed = 0
        self._warned = False

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self,
        gradients: Sequence[Any],
        is_local: Sequence[bool] = (),
        names: Sequence[str] = (),
    ) -> list[Any]:
        """The reduced gradients. Those that `is_local` marks are not reduced."""
        results, options = list(gradients), self.options
        if not options.active and self.passes == 1:
            return results
        self._warn_of_second_reduction(results)
        given = [i for i, gradient in enumerate(results) if gradient is not None]
        local = [i for i in given if i < len(is_local) and is_local[i]]
        for i in local:
            results[i] = _divided(results[i], options.local_scale)
        sparse = [i for i in given if isinstance(results[i], tf.IndexedSlices)]
        if sparse and self.passes > 1 and not options.sparse_as_dense:
            raise ValueError(
                "backward_passes_per_step > 1 needs dense gradients: set sparse_as_dense=True"
            )
        sparse = [i for i in sparse if i not in local and not options.sparse_as_dense]
        dense = [i for i in given if i not in sparse and (i not in local or self.passes > 1)]
        if sparse:
            slices = [results[i] for i in sparse]
            process_set = options.process_set
            gathered = grouped_allreduce(slices, op=options.op, process_set=process_set)
            for i, each in zip(sparse, gathered, strict=True):
                results[i] = each
        if dense:
            tensors = [tf.convert_to_tensor(results[i]) for i in dense]
            own = [place for place, i in enumerate(dense) if i in local]
            titles = [names[i] if i < len(names) else f"noname.{i}" for i in dense]
            for i, each in zip(dense, self._reduce(tensors, own, titles), strict=True):
                results[i] = each
        for each in results:
            if each is not None:
                each._hvdlite_reduced = True
        return results

    def _warn_of_second_reduction(self, gradients: list[Any]) -> None:
        if not self._warned and any(hasattr(each, "_hvdlite_reduced") for each in gradients):
            self._warned = True
            warnings.warn(
                "these gradients have been reduced over the ranks already: use either "
                "hvd.DistributedGradientTape or hvd.DistributedOptimizer, not both",
                stacklevel=4,
            )

    def _reduce(
        self, tensors: list[tf.Tensor], local: list[int], names: Sequence[str]
    ) -> list[tf.Tensor]:
        tensors, contexts = compress(tensors, self.options.compressor)
        name, place = name_of("gradients", None), self._place(tensors)
        if place is not None:
            reduced = self._reduce_flat(tensors, names, place)
        else:
            ready, *reduced = call(
                lambda *arrays: self._run(arrays, local, names, name),
                tensors,
                [tf.bool, *(tensor.dtype for tensor in tensors)],
                [(), *(tensor.shape for tensor in tensors)],
            )
            self.ready = ready if self.passes > 1 else True
        return decompress(reduced, contexts, self.options.compressor)

    # On a GPU

    def _place(self, tensors: Sequence[tf.Tensor]) -> str | None:
        """The GPU on which the gradients can be reduced, all in one flat tensor for each dtype."""
        in_order = tf.executing_eagerly() or tf.inside_function()
        known = all(tensor.shape.is_fully_defined() for tensor in tensors)
        able = self.passes == 1 and self.options.op != ADASUM and self.options.active
        return gpu.device_for(tensors) if able and in_order and known else None

    def _reduce_flat(
        self, tensors: Sequence[tf.Tensor], names: Sequence[str], place: str
    ) -> list[tf.Tensor]:
        wire = self.options.wire_dtype
        sent = [tf.cast(t, wire) if wire and t.dtype.is_floating else t for t in tensors]
        alike: dict[tf.DType, list[int]] = {}
        for i, each in enumerate(sent):
            alike.setdefault(each.dtype, []).append(i)
        with tf.device(place):
            flat = [tf.concat([tf.reshape(sent[i], [-1]) for i in m], 0) for m in alike.values()]
        gradients = [
            Gradient(name, tuple(each.shape), np.dtype(each.dtype.as_numpy_dtype))
            for name, each in zip(names, sent, strict=True)
        ]
        key = digest(tuple((each.shape, dtype_name(each.dtype)) for each in gradients))
        run = functools.partial(self._run_flat, key, gradients)
        whole = call(run, flat, list(alike), [each.shape for each in flat], place)
        results = list(tensors)
        for members, each in zip(alike.values(), whole, strict=True):
            with tf.device(place):
                pieces = tf.split(each, [sent[i].shape.num_elements() for i in members])
            for i, piece in zip(members, pieces, strict=True):
                results[i] = tf.cast(tf.reshape(piece, tensors[i].shape), tensors[i].dtype)
        return results

    def _run_flat(
        self, key: int, gradients: Sequence[Gradient], *arrays: np.ndarray
    ) -> list[np.ndarray]:
        reducer = self._reducers.get(key)
        if reducer is None or not reducer.is_current:
            reducer = self._reducers[key] = _FlatReducer(self.options)
            reducer.lay_out(gradients)
        options = self.options.op, *self.options.scales, self.options.process_set
        device = gpu.device_of(arrays[0])
        with _advising():
            outputs = [gpu.empty_like(array) for array in arrays]
            return calls.allreduce(arrays, outputs, reducer.name, *options, device).wait()

    # In host memory

    def _run(
        self,
        arrays: Sequence[np.ndarray],
        local: list[int],
        names: Sequence[str],
        name: str | None,
    ) -> list[np.ndarray]:
        """Whether this was the last of some passes, and the reduced arrays."""
        arrays = list(arrays)
        if self.passes > 1:
            if self._passed == 0:
                self._sums = [array.copy() for array in arrays]
            else:
                for total, array in zip(self._sums, arrays, strict=True):
                    total += array
            self._passed = (self._passed + 1) % self.passes
            if self._passed:
                return [np.False_, *map(np.zeros_like, arrays)]
            arrays, self._sums = self._sums, []
            if self.options.average_aggregated_gradients:
                arrays = [array / array.dtype.type(self.passes) for array in arrays]
        if self.options.active:
            shared = [i for i in range(len(arrays)) if i not in local]
            with _advising():
                reduced = self._reduce_arrays(
                    [arrays[i] for i in shared], [names[i] for i in shared], name
                )
            for i, array in zip(shared, reduced, strict=True):
                arrays[i] = array
        return [np.True_, *arrays]

    def _reduce_arrays(
        self, arrays: Sequence[np.ndarray], names: Sequence[str], name: str | None
    ) -> list[np.ndarray]:
        """The reduced arrays; every rank of the set must call it with the same shapes."""
        if self.options.op == ADASUM:
            outputs, scales = [np.empty_like(array) for array in arrays], (1.0, 1.0)
            process_set = self.options.process_set
            return calls.allreduce(arrays, outputs, name, ADASUM, *scales, process_set).wait()
        key = digest((name, *((array.shape, dtype_name(array.dtype)) for array in arrays)))
        reducer = self._reducers.get(key)
        if reducer is None or not reducer.is_current:  # the first step after an init()
            reducer = GradientReducer(self.options)
            gradients = [
                Gradient(title, array.shape, self._wire_dtype(array.dtype))
                for title, array in zip(names, arrays, strict=True)
            ]
            reducer.lay_out(gradients, name=name)
            self._reducers[key] = reducer
        return [
            reduced.astype(array.dtype, copy=self.keep)
            for array, reduced in zip(arrays, reducer.reduce(arrays), strict=True)
        ]

    def _wire_dtype(self, dtype: np.dtype) -> np.dtype:
        wire = self.options.wire_dtype
        floating = dtype.kind == "f" or dtype == BFLOAT16
        return np.dtype(wire.as_numpy_dtype) if wire and floating else dtype


def _divided(gradient: Any, number: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / number
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / number
