"""The builder: one source a lab, `labs/NN_name/lab.py`, makes its two notebooks.

    labs/NN_name/NN_name.ipynb             for students: exercises emptied, no outputs
    labs/NN_name/solution/NN_name.ipynb    for instructors: solved and executed

docs/labs.md describes the format.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat

from .execute import execute, tidy
from .notebook import instructor, student, write
from .source import BuildError, Lab, read

__all__ = ["BuildError", "Lab", "build", "execute", "find", "instructor", "paths", "read"]
__all__ += ["student", "write"]


def find(labs: Path, numbers: Sequence[str] = ()) -> list[Path]:
    """The sources of these labs ("00", "03"; all by default), in order.

    Raises:
        BuildError: there is no such lab.
    """
    sources = sorted(labs.glob("[0-9][0-9]_*/lab.py"))
    if not sources:
        raise BuildError(f"{labs}: no labs here (folders NN_name with a lab.py)")
    known = {source.parent.name[:2]: source for source in sources}
    wanted = [number.zfill(2) for number in numbers] or sorted(known)
    for number in wanted:
        if number not in known:
            raise BuildError(f"{labs}: there is no lab {number}; there are {', '.join(known)}")
    return [known[number] for number in wanted]


def paths(source: Path) -> tuple[Path, Path]:
    """Where the student's and the instructor's notebook of a source lie."""
    name = f"{source.parent.name}.ipynb"
    return source.parent / name, source.parent / "solution" / name


def build(
    labs: Path,
    numbers: Sequence[str] = (),
    run: bool = True,
    tell: Callable[[str], None] = print,
) -> None:
    """Write both notebooks of these labs; without `run` only the students'.

    Raises:
        BuildError: a source is malformed (file and line), or a cell of the solution fails.
    """
    read_labs = [read(source) for source in find(labs, numbers)]  # all checked before any is run
    for lab in read_labs:
        for_student, for_instructor = paths(lab.path)
        for_student.write_text(write(student(lab)), encoding="utf-8")
        tell(f"{for_student}")
        if not run:
            continue
        with tempfile.TemporaryDirectory(prefix="hvdlab-build-") as folder:
            try:
                done = execute(instructor(lab), Path(folder), lab.path.resolve().parents[2], True)
            except BuildError as error:
                raise BuildError(f"{lab.path}: {error}") from None
        for_instructor.parent.mkdir(exist_ok=True)
        text = write(tidy(done, lab))
        nbformat.validate(nbformat.reads(text, as_version=4))
        for_instructor.write_text(text, encoding="utf-8")
        tell(f"{for_instructor}")
