"""The small sample of real images that ships with the package, for when nothing else is.

`write_sample()` cuts it anew from the full sets.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

from .catalog import SETS, DataSet
from .files import to_array, to_idx

FOLDER = Path(__file__).with_name("sample")
TRAIN_PER_CLASS = 40
TEST_PER_CLASS = 10


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


def cut(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first images of every class, in the set's own order."""
    cut_arrays = {}
    for part, per_class in (("train", TRAIN_PER_CLASS), ("test", TEST_PER_CLASS)):
        labels = arrays[f"{part}_labels"]
        first = [np.flatnonzero(labels == label)[:per_class] for label in range(10)]
        chosen = np.sort(np.concatenate(first))
        cut_arrays[f"{part}_images"] = arrays[f"{part}_images"][chosen]
        cut_arrays[f"{part}_labels"] = labels[chosen]
    return cut_arrays


def write_sample(folder: Path = FOLDER) -> None:
    """Cut the sample from the full sets, which are fetched if need be."""
    from . import load

    for spec in SETS.values():
        full = load(spec.name, sample_ok=False)
        for role, array in cut({role: getattr(full, role) for role in spec.files}).items():
            packed = gzip.compress(to_idx(array), compresslevel=9, mtime=0)
            (folder / f"{spec.name}-{role}.gz").write_bytes(packed)
