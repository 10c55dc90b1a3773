"""One call of one rank: what it asks for, and what became of it."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

# Reduction operations; the numbers are Horovod's.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Descriptor(NamedTuple):
    """What must be the same on every rank before a collective may run.

    `shapes` has one shape for each tensor of the call; where the first dimension may differ
    between ranks (allgather, alltoall) it is left out. A `numbered` call got no name from the
    user; its name is then a number, counted for each kind. `packed` says that the tensor is a
    buffer of gradients, packed already.
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


_digests: dict[Any, int] = {}


def digest(key: Any) -> int:
    """A 64-bit number that differs where `key` (a tuple of plain values) differs.

    Unlike hash() it is the same in every process. Kept for the keys that training repeats.
    """
    number = _digests.get(key)
    if number is None:
        if len(_digests) > 10_000:
            _digests.clear()
        data = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        number = _digests[key] = int.from_bytes(data, "little", signed=True)
    return number


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


class Part(NamedTuple):
    """What is a request's own in a call of several; see Descriptor and Request."""

    dtype: str = ""
    shapes: tuple = ((),)
    inputs: Sequence[np.ndarray] = ()
    outputs: Sequence[np.ndarray] = ()
    counts: Sequence[int] = ()
    payload: Any = None


@dataclass(slots=True, eq=False)
class Request:
    """A collective call on its way. All arrays are flat and contiguous; on GPUs they are CuPy's.

    What a kind uses, n being the number of elements and p the number of ranks:

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
