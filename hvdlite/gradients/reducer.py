"""All gradients of a step, reduced over the ranks in as few calls as there are buckets.

A bucket is a flat buffer for gradients of one dtype. On one host it lies in shared memory, so that
a reduction moves nothing but the buffer.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

import numpy as np

from hvdlite.basics import engine, is_initialized, process_set_number
from hvdlite.engine.engine import Engine
from hvdlite.exceptions import HorovodInternalError
from hvdlite.gpu.cuda import CPU
from hvdlite.gradients.options import GradientOptions
from hvdlite.memory.shared_memory import Segment
from hvdlite.request import AVERAGE, Descriptor, Request, digest, dtype_name

NONE, DENSE = 0, 1  # presence: this rank has no gradient, which counts as zeros, or has one
_ALIGN = 16  # elements; each gradient begins on a cache line


class Gradient(NamedTuple):
    """What is to be known of a gradient before it is there."""

    name: str  # for messages and the timeline; may differ between ranks
    shape: tuple[int, ...]
    dtype: np.dtype  # that it is sent as
    device: str = CPU.name

    @property
    def form(self) -> str:
        """What must be the same on all ranks, as a message shows it."""
        return f"{dtype_name(self.dtype)} of shape {self.shape}"


class Bucket:
    """A flat buffer for some gradients of a list, which are of one dtype and on one device.

    Behind the gradients stands a number for each of them, its presence, which is reduced with
    them. So all ranks know afterwards what there was of it on any of them.
    """

    name: str  # of its calls

    def __init__(self, gradients: Sequence[Gradient], members: Sequence[int]):
        self.members = list(members)  # positions in the list of all gradients
        self._gradients = [gradients[i] for i in members]
        self.dtype, self.device = self._gradients[0].dtype, self._gradients[0].device
        self._sizes = [int(np.prod(each.shape, dtype=np.int64)) for each in self._gradients]
        padded = (-(-size // _ALIGN) * _ALIGN for size in self._sizes)
        *self.starts, self._presence_start = accumulate(padded, initial=0)
        self.count = self._presence_start + len(self.members)
        self._rows: Sequence[np.ndarray] | None = None

    def use_segment(self, segment: Segment | None) -> None:
        """Put the buffer into this rank's row of shared memory, or into its own memory."""
        if segment is None:
            self.use(np.zeros(self.count, dtype=self.dtype))
        else:
            self._rows = [row.view(self.dtype) for row in segment.rows]
            self.use(self._rows[segment.index])

    def use(self, flat: np.ndarray) -> None:
        """Take an array of `count` elements for the buffer."""
        self.flat = flat
        self.presence = flat[self._presence_start :]

    def piece(self, k: int) -> np.ndarray:
        """The k-th gradient of the bucket as an array of its shape, a view of the buffer."""
        start = self.starts[k]
        return self.flat[start : start + self._sizes[k]].reshape(self._gradients[k].shape)

    def fill(self, gradients: Sequence[Any], sparse_presence: int) -> None:
        """Put in all gradients of the bucket, and which of them there are; here arrays, and all."""
        for k, gradient in enumerate(gradients):
            self.piece(k)[...] = gradient
        self.presence[:] = DENSE

    def reduced(
        self, gradients: Sequence[Any], became_sparse: Callable[[float], bool]
    ) -> Sequence[Any]:
        """What becomes of the gradients that were put in; here views of the buffer, for all.

        `became_sparse` tells from a reduced presence whether the gradient is sparse on any rank.
        """
        return [self.piece(k) for k in range(len(self.members))]

    def request(self, name: str, op: int, scales: tuple[float, float], traced: bool) -> Request:
        """The allreduce of the whole buffer; `traced` if a timeline is to show its gradients."""
        dtype, shapes = dtype_name(self.dtype), ((self.count,),)
        descriptor = Descriptor(
            "allreduce", name, op, dtype, shapes, -1, *scales, self.device, packed=True
        )
        members = [f"allreduce.{each.name}" for each in self._gradients] if traced else ()
        arrays = (self.flat,)
        return Request(descriptor, arrays, arrays, shared_rows=self._rows, members=members)

    def allocation(self, name: str) -> Request:
        """The request for the buffer's memory."""
        nbytes = self.count * self.dtype.itemsize
        return Request(Descriptor("allocate", name, shapes=((nbytes,), (dtype_name(self.dtype),))))


def by_dtype(gradients: Sequence[Gradient], positions: Sequence[int]) -> list[list[int]]:
    """Those of the gradients at these positions that can share a bucket."""
    alike: dict[tuple, list[int]] = {}
    for i in positions:
        alike.setdefault((gradients[i].dtype, gradients[i].device), []).append(i)
    return list(alike.values())


def running_engine() -> Engine | None:
    """The engine between init() and shutdown(), else None."""
    return engine() if is_initialized() else None


class GradientReducer:
    """Reduces the gradients of one list, as often as wanted; all ranks of the set take part.

    `lay_out` says which gradients there are. For each step a binding then gives them to `reduce`,
    which returns the reduced ones; it may have filled and started some of the `buckets` before.

    A gradient that is sparse on any rank gets `sparse_presence` there, and is put in as
    dense, once. From the next step on it is one of `sparse`, which have no place in a bucket.

    One thread at a time may use it. On a GPU, what `reduce` returns is there for what the caller's
    current stream does next.
    """

    def __init__(self, options: GradientOptions):
        self.options = options
        self.buckets: list[Bucket] = []
        self.sparse: set[int] = set()  # positions
        self._gradients: list[Gradient] = []
        self._under_way: dict[Bucket, Request] = {}
        self._engine: Engine | None = None
        self._laid_out = False
        # More than if every rank had a dense gradient, also where it is rounded to 8 bits.
        self.sparse_presence = 2 * options.process_set.size()

    @property
    def is_current(self) -> bool:
        """Whether there are buckets of the running engine; not so after another init().

        Nor after a `lay_out` that has failed: the next one fails again while the models differ.
        """
        return self._laid_out and self._engine is running_engine()

    def lay_out(
        self,
        gradients: Sequence[Gradient],
        sparse: Iterable[int] = (),
        name: str | None = None,
    ) -> None:
        """Agree with the other ranks on the list of gradients, and make their buckets.

        `sparse` are the positions of those that are sparse on this rank; those of the other ranks
        are added. Raises HorovodInternalError, the same on all ranks, where shapes or dtypes
        differ.
        """
        self._set_id = process_set_number(self.options.process_set)
        if not self.is_current:
            self._engine = engine()
            number = name or self._engine.next_name("gradients", self._set_id)
            self.name = f"gradients.{number}"
        self._laid_out = False
        self._under_way, self._gradients = {}, list(gradients)
        number = digest(tuple((each.shape, each.dtype.name) for each in gradients))
        answers = self._survey("layout", (number, sorted(sparse)))
        if len({shown for shown, _ in answers.values()}) > 1:
            self._raise_difference()
        if not self.options.sparse_as_dense:
            self.sparse = {i for _, positions in answers.values() for i in positions}
        dense = [i for i in range(len(gradients)) if i not in self.sparse]
        self.buckets = list(self.make_buckets(gradients, dense))
        for i, bucket in enumerate(self.buckets):
            bucket.name = f"{self.name}.{i}"
        requests = [bucket.allocation(bucket.name) for bucket in self.buckets]
        self._engine.submit(requests, self._set_id)
        for bucket, request in zip(self.buckets, requests, strict=True):
            self._engine.wait(request)
            bucket.use_segment(request.result)
        self._laid_out = True

    def make_buckets(
        self, gradients: Sequence[Gradient], positions: Sequence[int]
    ) -> Sequence[Bucket]:
        """The buckets for the gradients at these positions: one for each dtype."""
        return [Bucket(gradients, members) for members in by_dtype(gradients, positions)]

    def _survey(self, title: str, item: object) -> dict[int, object]:
        """What each rank has to tell; those that have joined have nothing."""
        survey = self._engine.call("survey", f"{self.name}.{title}", self._set_id, payload=item)
        ranks = zip(self.options.process_set.ranks, survey.result, strict=True)
        return {rank: item for rank, item in ranks if item is not None}

    def _raise_difference(self) -> None:
        lists = self._survey("differences", [(each.form, each.name) for each in self._gradients])
        missing = ("missing", "")
        for position, row in enumerate(zip_longest(*lists.values(), fillvalue=missing), 1):
            if len({form for form, _ in row}) > 1:
                each = [
                    f"'{name}', {form}, on rank {rank}" if name else f"missing on rank {rank}"
                    for rank, (form, name) in zip(lists, row, strict=True)
                ]
                raise HorovodInternalError(
                    f"the ranks' models differ: gradient {position} is {'; '.join(each)}. "
                    "Build the same model on every rank"
                )

    def start(self, bucket: Bucket) -> None:
        """Begin to reduce a bucket that has been filled."""
        op, scales = self.options.op, self.options.scales
        traced = self._engine.timeline is not None
        request = bucket.request(bucket.name, op, scales, traced)
        self._engine.submit([request], self._set_id)
        self._under_way[bucket] = request

    def progress(self) -> None:
        """Move along what has begun, if anything has."""
        if self._under_way and self.is_current:
            self._engine.progress()

    def wait(self) -> None:
        """Wait for all buckets under way; raises the first error once all are over."""
        errors = []
        for request in self._under_way.values():
            try:
                self._engine.wait(request)
            except HorovodInternalError as error:
                errors.append(error)
        self._under_way.clear()
        if errors:
            raise errors[0]

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Fill and reduce all buckets that are not under way yet, and wait for all.

        `gradients` are all that are laid out. Returns what becomes of them; those that have no
        place in a bucket stay as they are.
        """
        for bucket in self.buckets:
            if bucket not in self._under_way:
                bucket.fill([gradients[i] for i in bucket.members], self.sparse_presence)
                self.start(bucket)
        self.wait()
        results = list(gradients)
        for bucket in self.buckets:
            reduced = bucket.reduced([gradients[i] for i in bucket.members], self.became_sparse)
            for i, each in zip(bucket.members, reduced, strict=True):
                results[i] = each
        return results

    def became_sparse(self, reduced: float) -> bool:
        """Whether a presence, after the reduction, says that the gradient is sparse somewhere."""
        size = 1 if self.options.op == AVERAGE else self.options.process_set.size()
        return reduced > 1.5 * size
