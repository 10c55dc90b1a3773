"""One call of one rank: what it asks for, and what became of it."""

import hashlib
from collections.abc import Sequence
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

    @property
    def title(self) -> str:
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


class Request:
    """A collective call on its way. `inputs` and `outputs` are flat, contiguous arrays.

    An output may be the input itself. Kinds whose result has a size that only the collective
    finds out (allgather, alltoall) leave it in `result`.
    """

    __slots__ = (
        "descriptor",
        "done",
        "error",
        "inputs",
        "item",
        "members",
        "nbytes",
        "outputs",
        "result",
        "rows",
    )

    def __init__(
        self,
        descriptor: Descriptor,
        inputs: Sequence[np.ndarray] = (),
        outputs: Sequence[np.ndarray] = (),
        item: Any = None,
        members: Sequence[str] = (),
        rows: Sequence[np.ndarray] | None = None,
    ):
        self.descriptor = descriptor
        self.inputs = inputs
        self.outputs = outputs
        self.item = item  # what a kind needs beside arrays: numbers of rows, an object
        self.rows = rows  # every rank's buffer, where the tensor lives in shared memory
        self.members = members  # the tensors that the timeline shows, if not the call itself
        self.nbytes = sum(array.nbytes for array in inputs)
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False

    def finish(self, error: Exception | None = None) -> None:
        self.error = error
        self.done = True
