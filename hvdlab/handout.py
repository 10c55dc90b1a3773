"""`hvdlab labs`: labs, scripts, sbatch files and pages in a folder of one's own.

They come from the checkout that hvdlab is part of, or from the installed package, which brings
them along in `hvdlab/course`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

PARTS = ("labs", "scripts", "slurm", "docs", "constraints.txt")
# What working in a checkout leaves behind.
_LEFT_BEHIND = {"__pycache__", ".ipynb_checkpoints", "work", "results"}


def source() -> Path:
    """The folder that holds `labs`, `scripts` and `slurm`: in the package, or the checkout."""
    brought = Path(__file__).resolve().parent / "course"
    return brought if brought.is_dir() else brought.parents[1]


def is_checkout() -> bool:
    """Whether hvdlab runs from a clone of its repository."""
    return (source() / "pyproject.toml").is_file()


def files(root: Path) -> Iterator[Path]:
    """The files of the handout, as paths below `root`."""
    for part in PARTS:
        found = sorted((root / part).rglob("*")) if (root / part).is_dir() else [root / part]
        for path in found:
            below = path.relative_to(root)
            if path.is_file() and not _LEFT_BEHIND & set(below.parts):
                yield below


def write(folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy the handout into a folder, which is made if need be.

    A file that is there already stays as it is. Returns the files that were written, and those
    that stay although they differ from the handout's.

    Raises:
        ValueError: the folder lies where the handout is taken from.
        OSError: the folder can't be written.
    """
    root, folder = source(), folder.expanduser().resolve()
    if folder == root or any(folder.is_relative_to(root / part) for part in PARTS):
        raise ValueError(f"the labs are in {root} already; name a folder elsewhere")
    written, different = [], []
    for below in files(root):
        target = folder / below
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / below, target)
            written.append(below)
        elif target.read_bytes() != (root / below).read_bytes():
            different.append(below)
    return written, different
