"""One call of one rank: what it asks for, and what became of it."""

import functools
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

# Reduction operations; the numbers are Horovod's.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Descriptor(NamedTuple):
    """What must be the same on every rank before a collective may run. Never changes.

    `dtype` is the name of the elements' type as numpy or ml_dtypes has it ("float32", "bfloat16"),
    `root` a rank of the world. A `numbered` call got no name from the user; its name is then a
    number, counted for each kind. `packed` says that the tensor is a buffer of gradients, packed
    already. The fields that are of use for a kind:

    kind                           shapes                               others
    allreduce, reducescatter       (the tensor's,)                      dtype, op, scales, device
    broadcast                      (the tensor's,)                      dtype, root, device
    allgather, alltoall            (a row's,), as ranks may have        dtype, device
                                   different numbers of rows
    allocate                       ((bytes of a row of memory,), ...),  -
                                   more of them only to be compared
    add_, remove_process_set       (the ranks,), or ((set_id,),)        -
    barrier, join, and exchanges   ((),)                                -
    of objects
    """

    kind: str
    name: str
    op: int = -1
    dtype: str = ""
    shapes: tuple = ((),)
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    device: str = "cpu"
    numbered: bool = False
    packed: bool = False

    def __str__(self) -> str:
        """How a message names the call."""
        return f"{self.kind} '{self.name}'"

    @property
    def key(self) -> str:
        """What tells pending calls apart, and names the tensor in the timeline, as in Horovod."""
        return f"{self.kind}.{self.name}"

    @property
    def digest(self) -> int:
        """A 64-bit number for the call: as good as never the same for two that differ."""
        if self.numbered:  # a new name each time, and all else as it was
            return digest(self[:1] + self[2:]) ^ zlib.crc32(self.name.encode())
        return digest(self)

    def values(self) -> dict[str, Any]:
        """The fields as a message shows them."""
        shapes = self.shapes[0] if len(self.shapes) == 1 else self.shapes
        return {
            "shape": shapes,
            "dtype": self.dtype,
            "operation": f"{self.kind} {OP_NAMES[self.op]}" if self.op >= 0 else self.kind,
            "root rank": self.root,
            "scale factors": (self.prescale, self.postscale),
            "device": self.device,
        }


@functools.lru_cache(10_000)  # for the keys that training repeats
def digest(key: Any) -> int:
    """A 64-bit number that differs where `key` (a tuple of plain values) differs.

    Unlike hash() it is the same in every process.
    """
    data = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(data, "little", signed=True)


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """dtype.name, which numpy makes anew, in microseconds, each time.

    Raises TypeError for elements that are no numbers: objects, strings, records, times.
    """
    if dtype.kind not in "biufc" and getattr(ml_dtypes, dtype.name, None) is not dtype.type:
        raise TypeError(
            f"collectives take tensors of numbers, not of dtype {dtype}; Python objects and "
            "strings go by broadcast_object and allgather_object"
        )
    return dtype.name


@dataclass(slots=True, eq=False)
class Request:
    """A collective call on its way.

    All arrays are flat, contiguous and of the descriptor's dtype; on GPUs they are CuPy's. From
    `Engine.submit` on they are the runtime's until the request is `done`, which is set last and
    may be read by any thread; on a GPU it means that the call is in its stream's queue, see
    `Engine.wait`. What a kind uses, n being the number of elements and p the number of ranks:

    kind           inputs     outputs           others                      result
    allreduce      [n]        [n], maybe the    shared_rows: p arrays [n],  -
                              input itself      if they are in shared memory
    broadcast      [n]        the input         -                           -
    allgather      [n]        -                 counts: own rows            elements of all ranks,
                                                                            int64 [p]: their rows
    alltoall       [n]        -                 counts: rows to each rank   elements received,
                                                                            int64 [p]: rows of each
    reducescatter  [n]        -                 -                           own share
    allocate       -          -                 -                           Segment or None
    exchanges      -          -                 payload: picklable          payloads in rank order
    join           -          -                 -                           last rank to join
    """

    descriptor: Descriptor
    inputs: Sequence[np.ndarray] = ()
    outputs: Sequence[np.ndarray] = ()
    counts: Sequence[int] = ()
    payload: Any = None
    shared_rows: Sequence[np.ndarray] | None = None
    set_id: int = 0  # of the process set
    is_stand_in: bool = False  # for a rank that has joined: elements that don't change the result
    members: Sequence[str] = ()  # the tensors that the timeline shows, if not the call itself
    # On a GPU: the stream that the arrays are made on, a function for the address of the one that
    # is current where it is called, and an event, first of the arrays, then of the results.
    stream: Any = None
    current: Callable[[], int] | None = None
    event: Any = None
    result: Any = None
    error: Exception | None = None
    done: bool = False

    @property
    def nbytes(self) -> int:
        """The size of what goes in."""
        return sum(array.nbytes for array in self.inputs)

    def finish(self, error: Exception | None = None) -> None:
        """The call is over: with its result, or with an error."""
        self.error = error
        self.done = True
