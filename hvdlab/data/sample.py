"""The small sample of real images that ships with the package, for when nothing else is.

It has the first 40 training and 10 test images of every class, in the order of the full set.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

from .catalog import DataSet
from .files import to_array

FOLDER = Path(__file__).with_name("sample")


def load_sample(spec: DataSet) -> dict[str, np.ndarray]:
    """The sample's arrays by role; the same number of images of every class."""
    arrays = {}
    for role in spec.files:
        packed = (FOLDER / f"{spec.name}-{role}.gz").read_bytes()
        arrays[role] = to_array(bytearray(gzip.decompress(packed)))
    return arrays


def warn(spec: DataSet, count: int, why: str) -> None:
    """Say on stderr, from every process, that these are not the full data."""
    line = "!" * 78
    print(
        f"\n{line}\n"
        f"  ONLY A SAMPLE of {spec.title}: {count} training images instead of 60,000.\n"
        "  Times, accuracies and curves mean nothing. `hvdlab data` fetches the full set;\n"
        "  HVDLITE_DATA_DIR names a folder that has it. What was tried:\n"
        + "".join(f"    {part}\n" for part in why.splitlines())
        + line,
        file=sys.stderr,
        flush=True,
    )
