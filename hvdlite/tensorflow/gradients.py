"""All gradients of a step reduced over the ranks in one call.

What TensorFlow hands over are arrays on its own memory. They are copied into a bucket in shared
memory (a large one only as far as other ranks reduce it), and the reduced gradients are views of
the bucket.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvdlite import buckets, calls
from hvdlite.basics import engine, process_set_number
from hvdlite.buckets import Bucket
from hvdlite.compression import NoneCompressor
from hvdlite.exceptions import HorovodInternalError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.reduction import BFLOAT16
from hvdlite.request import ADASUM, AVERAGE, Request, digest
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.graph import call, name_of
from hvdlite.tensorflow.ops import grouped_allreduce

# What to do about an error, by the words in it that tell what went wrong.
_HINTS = {
    "has ended": "Ranks must take the same number of steps. Where a callback ends the training "
    "early, all ranks must see the same metrics: put hvd.callbacks.MetricAverageCallback() before "
    "EarlyStopping.",
    "allocate '": "The gradients differ in number, shape or dtype: build the same model on every "
    "rank.",
}


@dataclass(eq=False)
class GradientReducer:
    """Reduces lists of gradients; `None` stays `None`.

    With `keep` the reduced gradients are the caller's. Without it they are views of this
    reducer's buckets and valid until its next call, which saves a copy.
    With several passes, gradients are added up on this rank for so many calls first; `ready`
    then says (a bool tensor) whether the last call has reduced them.
    """

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: int = AVERAGE
    gradient_predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    keep: bool = True

    def __post_init__(self) -> None:
        self.passes, factor = self.backward_passes_per_step, self.gradient_predivide_factor
        calls.check_gradients(self.compression, self.process_set, self.op, factor, self.passes)
        self.ready: Any = True
        self._scales = (1.0 / factor, factor)
        self._buckets: dict[int, list[_Share]] = {}
        self._engine: Any = None
        self._sums: list[np.ndarray] = []
        self._passed = 0
        self._warned = False

    @property
    def active(self) -> bool:
        """Whether there are other ranks to reduce with."""
        return self.process_set.included() and self.process_set.size() > 1

    def __call__(self, gradients: Sequence[Any], is_local: Sequence[bool] = ()) -> list[Any]:
        """The reduced gradients. Those that `is_local` marks are not reduced."""
        results = list(gradients)
        if not self.active and self.passes == 1:
            return results
        self._warn_of_second_reduction(results)
        given = [i for i, gradient in enumerate(results) if gradient is not None]
        local = [i for i in given if i < len(is_local) and is_local[i]]
        for i in local:
            results[i] = self._scaled(results[i])
        sparse = [i for i in given if isinstance(results[i], tf.IndexedSlices)]
        if sparse and self.passes > 1 and not self.sparse_as_dense:
            raise ValueError(
                "backward_passes_per_step > 1 needs dense gradients: set sparse_as_dense=True"
            )
        sparse = [i for i in sparse if i not in local and not self.sparse_as_dense]
        dense = [i for i in given if i not in sparse and (i not in local or self.passes > 1)]
        if sparse:
            slices = [results[i] for i in sparse]
            gathered = grouped_allreduce(slices, op=self.op, process_set=self.process_set)
            for i, each in zip(sparse, gathered, strict=True):
                results[i] = each
        if dense:
            tensors = [tf.convert_to_tensor(results[i]) for i in dense]
            reduced = self._reduce(tensors, [place for place, i in enumerate(dense) if i in local])
            for i, each in zip(dense, reduced, strict=True):
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

    def _scaled(self, gradient: Any) -> Any:
        """A local gradient, so that its share in the model's step is that of an averaged one."""
        size = self.process_set.size() if self.scale_local_gradients else 1
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / size
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / size

    def _reduce(self, tensors: list[tf.Tensor], local: list[int]) -> list[tf.Tensor]:
        compression = self.compression
        own_casts = compression is NoneCompressor or hasattr(compression, "wire_dtype")
        contexts: Sequence[Any] = ()
        if not own_casts:
            tensors, contexts = zip(*map(compression.compress, tensors), strict=True)
        name = name_of("gradients", None)
        ready, *reduced = call(
            lambda *arrays: self._run(arrays, local, name),
            tensors,
            [tf.bool, *(tensor.dtype for tensor in tensors)],
            [(), *(tensor.shape for tensor in tensors)],
        )
        self.ready = ready if self.passes > 1 else True
        if not own_casts:
            pairs = zip(reduced, contexts, strict=True)
            reduced = [compression.decompress(*pair) for pair in pairs]
        return reduced

    def _run(
        self, arrays: Sequence[np.ndarray], local: list[int], name: str | None
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
            if self.average_aggregated_gradients:
                arrays = [array / array.dtype.type(self.passes) for array in arrays]
        if self.active:
            shared = [i for i in range(len(arrays)) if i not in local]
            try:
                reduced = self.reduce_arrays([arrays[i] for i in shared], name)
            except HorovodInternalError as error:
                hints = [hint for words, hint in _HINTS.items() if words in str(error)]
                raise HorovodInternalError(" ".join([str(error), *hints])) from None
            for i, array in zip(shared, reduced, strict=True):
                arrays[i] = array
        return [np.True_, *arrays]

    def reduce_arrays(self, arrays: Sequence[np.ndarray], name: str | None) -> list[np.ndarray]:
        """The reduced arrays; every rank of the set must call it with the same shapes."""
        group = process_set_number(self.process_set)
        if self.op == ADASUM:
            outputs = [np.empty_like(array) for array in arrays]
            return calls.allreduce(arrays, outputs, name, ADASUM, 1, 1, self.process_set).wait()
        if self._engine is not engine():  # the first step, or the first after another init()
            self._engine, self._buckets = engine(), {}
        key = digest((name, *((array.shape, array.dtype.name) for array in arrays)))
        if key not in self._buckets:
            # The shapes are no part of the name, so that ranks whose shapes differ learn of it.
            number = name or self._engine.next_name("gradients", group)
            base = f"gradients.{number}"
            self._buckets[key] = self._shares(arrays, base, group)
        shares = self._buckets[key]
        requests = [share.request(arrays, self.op, *self._scales) for share in shares]
        self._engine.submit(requests, group)
        results: list[Any] = [None] * len(arrays)
        for share, request in zip(shares, requests, strict=True):
            self._engine.wait(request, group)
            for place, i in enumerate(share.members):
                results[i] = share.bucket.piece(place).astype(arrays[i].dtype, copy=self.keep)
        return results

    def _shares(self, arrays: Sequence[np.ndarray], base: str, group: int) -> list["_Share"]:
        wire = getattr(self.compression, "wire_dtype", None)
        by_dtype: dict[np.dtype, list[int]] = {}
        for i, array in enumerate(arrays):
            floating = array.dtype.kind == "f" or array.dtype == BFLOAT16
            dtype = np.dtype(wire.as_numpy_dtype) if wire and floating else array.dtype
            by_dtype.setdefault(dtype, []).append(i)
        shares = [
            _Share(f"{base}.{n}", members, Bucket([arrays[i].shape for i in members], dtype))
            for n, (dtype, members) in enumerate(by_dtype.items())
        ]
        buckets.place([share.bucket for share in shares], base, group)
        return shares


class _Share(NamedTuple):
    """The gradients that share a bucket."""

    name: str
    members: list[int]  # their places in the list of all gradients
    bucket: Bucket

    def request(self, arrays: Sequence[np.ndarray], op: int, *scales: float) -> Request:
        """Copy the gradients in; the request to reduce them."""
        for place, i in enumerate(self.members):
            self.bucket.piece(place)[...] = arrays[i]
        return self.bucket.request(self.name, op, *scales)
