"""One call of one rank: what it asks for, and what became of it."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Reduction operations; the numbers are Horovod's.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Descriptor(NamedTuple):
    """What must be the same on every rank before a collective may run.

    `shapes` has one shape for each tensor of the call; where the first dimension may differ
    between ranks (allgather, alltoall) it is left out.
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

    def __str__(self) -> str:
        """How a message names the call."""
        return f"{self.kind} '{self.name.removeprefix(self.kind + '.')}'"

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
    """dtype.name, which numpy makes anew, in microseconds, each time."""
    return dtype.name


@dataclass(slots=True, eq=False)
class Request:
    """A collective call on its way. `inputs` and `outputs` are flat, contiguous arrays.

    An output may be the input itself. Kinds whose result has a size that only the collective
    finds out (allgather, alltoall) leave it in `result`.
    """

    descriptor: Descriptor
    inputs: Sequence[np.ndarray] = ()
    outputs: Sequence[np.ndarray] = ()
    item: Any = None  # what a kind needs beside arrays: numbers of rows, an object
    members: Sequence[str] = ()  # the tensors that the timeline shows, if not the call itself
    rows: Sequence[np.ndarray] | None = None  # every rank's buffer, if it is in shared memory
    stream: Any = None  # the GPU's stream, if the arrays are CuPy's
    result: Any = None
    error: Exception | None = None
    done: bool = False

    @property
    def nbytes(self) -> int:
        """The size of what goes in."""
        return sum(array.nbytes for array in self.inputs)

    def finish(self, error: Exception | None = None) -> None:
        self.error = error
        self.done = True
