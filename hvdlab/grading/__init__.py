"""The labs as a course of nbgrader, which hands them out, collects them and marks them.

`make_course` writes the folder; the rest is done by nbgrader's own commands.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..builder import find, instructor, read, write
from ..builder.notebook import STUB

_CONFIG = """\
# An nbgrader course, made by `hvdlab nbgrader` and yours to change.
# `nbgrader generate_config` writes down all options that there are.
from pathlib import Path

from hvdlab.grading import configure

c = get_config()
configure(c)  # how the labs' submissions are run; see hvdlab/grading

c.CourseDirectory.course_id = {name!r}
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.Exchange.root = {exchange}  # teacher and students must reach it and write to it

c.Execute.timeout = 300  # seconds for one cell
c.Execute.limit = 1800  # seconds for a whole notebook
"""


class CourseError(RuntimeError):
    """The course can't be made; the message says why."""


def make_course(
    folder: Path,
    labs: Path,
    numbers: Sequence[str] = (),
    students: Path | None = None,
    exchange: Path | None = None,
    name: str = "hvdlite",
    tell: Callable[[str], None] = print,
) -> None:
    """Write an nbgrader course folder, or add labs to it; what is there already stays.

    Args:
        folder: the course's folder.
        labs: the folder of the labs' sources.
        numbers: the labs ("00", "03"); all by default.
        students: a CSV file with a column id, and perhaps first_name, last_name and email.
        exchange: nbgrader's exchange; FOLDER/exchange by default, which suits one account.
        name: the course's id, which students name to fetch the labs.

    Raises:
        CourseError: nbgrader isn't installed, or doesn't take the students.
        BuildError: there is no such lab, or its source is malformed.
    """
    if importlib.util.find_spec("nbgrader") is None:
        raise CourseError("nbgrader is not installed: pip install 'nbgrader>=0.9.5,<1'")
    sources = [read(source) for source in find(labs, numbers)]
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nbgrader_config.py"
    if not config.exists():
        place = str(exchange.resolve()) if exchange else None
        if place is None:
            (folder / "exchange").mkdir(exist_ok=True)
        own = 'str(Path(__file__).resolve().parent / "exchange")'
        config.write_text(_CONFIG.format(name=name, exchange=repr(place) if place else own))
        tell(f"{config}")
    for lab in sources:
        title = lab.path.parent.name
        notebook = folder / "source" / title / f"{title}.ipynb"
        if notebook.exists():
            tell(f"{notebook} is there already and stays as it is")
            continue
        notebook.parent.mkdir(parents=True)
        notebook.write_text(write(instructor(lab)), encoding="utf-8")
        points = sum(cell.points for cell in lab.cells)
        tell(f"{notebook}: {points:g} points")
    if students is not None:
        command = [sys.executable, "-m", "nbgrader", "db", "student", "import"]
        done = subprocess.run(
            [*command, str(students.resolve())], cwd=folder, text=True, capture_output=True
        )
        if done.returncode:
            raise CourseError(f"nbgrader does not take {students}:\n{done.stderr.strip()}")
        tell(f"students of {students}")


def configure(c: Any) -> None:
    """Set what nbgrader must know to hand out and to mark the labs, in nbgrader_config.py."""
    from nbgrader import preprocessors
    from nbgrader.converters import Autograde

    from ..magic import prepare_environment
    from .execute import Execute

    prepare_environment()  # nbgrader starts alembic, which lies beside this Python, by its name
    c.ClearSolutions.code_stub = {"python": "\n".join(STUB)}
    c.OverwriteCells.add_missing_cells = True  # a check that somebody has deleted comes back
    steps = Autograde.class_traits()["autograde_preprocessors"].default()
    c.Autograde.autograde_preprocessors = [
        Execute if step is preprocessors.Execute else step for step in steps
    ]
