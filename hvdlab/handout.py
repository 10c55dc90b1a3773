"""`hvdlab handout`: the course in a folder of one's own; `hvdlab reset`: one lab as it was.

It comes from the checkout that hvdlab is part of, or from the installed package, which brings it
along in `hvdlab/course`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

PARTS = ("labs", "scripts", "slurm", "docs", "constraints.txt")
# What working in a checkout leaves behind.
_LEFT_BEHIND = {"__pycache__", ".ipynb_checkpoints", "work", "results"}
# What holds answers, and pages for those who teach: files and folders by their names.
_FOR_TRAINERS = {"lab.py", "solution", "solutions"}
_FOR_TRAINERS |= {"instructor.md", "checks.md", "labs.md", "style.md"}


def source() -> Path:
    """The folder that holds `labs`, `scripts` and `slurm`: in the package, or the checkout."""
    brought = Path(__file__).resolve().parent / "course"
    return brought if brought.is_dir() else brought.parents[1]


def is_checkout() -> bool:
    """Whether hvdlab runs from a clone of its repository."""
    return (source() / "pyproject.toml").is_file()


def files(root: Path, everything: bool = False) -> Iterator[Path]:
    """The files of the handout, as paths below `root`: what students get, or everything."""
    leave_out = _LEFT_BEHIND if everything else _LEFT_BEHIND | _FOR_TRAINERS
    for part in PARTS:
        found = sorted((root / part).rglob("*")) if (root / part).is_dir() else [root / part]
        for path in found:
            below = path.relative_to(root)
            if path.is_file() and not leave_out & set(below.parts):
                yield below


def write(folder: Path, everything: bool = False) -> tuple[list[Path], list[Path]]:
    """Copy the handout into a folder, which is made if need be.

    A file that is there already stays as it is. Returns the files that were written, and those
    that stay although they differ from the handout's.

    Args:
        everything: also the solutions, the labs' sources, and the pages for trainers.

    Raises:
        ValueError: the folder lies where the handout is taken from.
        OSError: the folder can't be written.
    """
    root, folder = source(), folder.expanduser().resolve()
    if folder == root or any(folder.is_relative_to(root / part) for part in PARTS):
        raise ValueError(f"the labs are in {root} already; name a folder elsewhere")
    written, different = [], []
    for below in files(root, everything):
        target = folder / below
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / below, target)
            written.append(below)
        elif target.read_bytes() != (root / below).read_bytes():
            different.append(below)
    return written, different


def reset(number: str, here: Path) -> tuple[Path, Path | None]:
    """Set one lab of the course that `here` lies in back to what was handed out.

    Where something was changed, its folder and the changed scripts are kept beside it. Returns the
    lab's folder, and the one that holds the work until now; None if there was none.

    Raises:
        ValueError: there is no such lab, `here` is in no handout, or it is the course's original.
        OSError: the folder can't be written.
    """
    from .check.course import ALL

    root, number = source(), number.zfill(2)
    original = next((root / "labs").glob(f"{number}_*"), None) if number.isdigit() else None
    if original is None:
        known = sorted(path.name[:2] for path in (root / "labs").glob("[0-9][0-9]_*"))
        raise ValueError(f"there is no lab {number}; there are {', '.join(known)}")
    folders = (here.resolve(), *here.resolve().parents)
    course = next((f for f in folders if any(f.glob("labs/[0-9][0-9]_*"))), None)
    if course is None:
        raise ValueError(f"{here} is in no folder of the course: cd to the one with labs in it")
    if course == root:
        raise ValueError(f"{root} is the original; work in a copy: hvdlab handout FOLDER")
    lab, kept = course / "labs" / original.name, None
    scripts = [f"scripts/{script.name}" for script in ALL if script.lab == number]
    changed = [
        course / name
        for name in scripts
        if (course / name).exists() and not _same(course / name, root / name)
    ]
    if changed or (lab.exists() and not _untouched(lab, original)):
        lab.mkdir(exist_ok=True)
        old = (lab.with_name(f"old_{lab.name}_{n}") for n in range(1, 1000))
        kept = next(path for path in old if not path.exists())
        lab.rename(kept)
        beside = kept / "scripts"
        while beside.exists():
            beside = beside.with_name(f"{beside.name}_")
        for mine in changed:
            beside.mkdir(exist_ok=True)
            mine.rename(beside / mine.name)
    write(course, everything=((kept or lab) / "solution").exists())
    return lab, kept


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _untouched(lab: Path, original: Path) -> bool:
    """Whether all that is there is as it was handed out; what is missing does not matter."""
    copies = {"__pycache__", ".ipynb_checkpoints"}  # of what was opened
    paths = [path for path in lab.rglob("*") if path.is_file() and not copies & set(path.parts)]
    return all(_same(path, original / path.relative_to(lab)) for path in paths)
