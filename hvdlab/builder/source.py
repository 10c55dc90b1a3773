"""A lab's source: `lab.py` in jupytext's percent format, read strictly.

What cells say about themselves, in their `# %%` line:

    # %% [markdown] exercise="NAME"        the card: a title, and lines "goal: ...", "minutes: 10",
                                           "difficulty: 1" to 3, "importance: core|useful|extra"
    # %% solution="NAME"                   what the student writes, between SOLUTION marks
    # %% check="NAME" points=2             the check of the exercise, run right after it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
from nbformat import NotebookNode

CARD = {
    "goal": r".{10,}",
    "minutes": r"[1-9]\d?",
    "difficulty": r"[123]",
    "importance": r"core|useful|extra",
}
# What the first cell of a lab tells, each at the start of a line.
OPENING = ("You will be able to", "**Time**", "**Before**", "**Without a GPU**")
_KINDS = ("exercise", "solution", "check")
_MARK = re.compile(r"^\s*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)\s*$")
_LIKE_A_MARK = re.compile(r"#+\s*(begin|end)[ _-]*(solution|hidden)", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")


class BuildError(Exception):
    """A source that can't be built; the message starts with file and line."""


@dataclass
class Cell:
    """A cell of the source. `line` is where its text begins; `name` the exercise it belongs to."""

    kind: str  # markdown, code, exercise, solution or check
    source: str
    line: int
    name: str = ""
    points: float = 0
    tags: tuple[str, ...] = ()


@dataclass
class Lab:
    """A lab's cells in their order."""

    path: Path
    cells: list[Cell]


def read(path: Path) -> Lab:
    """Read a lab and check its form.

    Raises:
        BuildError: the first thing that is wrong, with file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path}: can't be read ({error.strerror})") from None
    notebook = jupytext.reads(text, fmt="py:percent")
    starts = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"# %%(\s|$)", line)]
    if len(starts) != len(notebook.cells):
        raise BuildError(f"{path}:1: the file must begin with a '# %%' line, without a header")
    lab = Lab(path, [])
    for start, node in zip(starts, notebook.cells, strict=True):
        lab.cells.append(_cell(path, start + 1, node))
    _check_opening(lab)
    _check_marks(lab)
    _check_exercises(lab)
    return lab


def read_card(source: str) -> dict[str, str]:
    """The card's fields by name, as far as they are there."""
    found = re.findall(r"^(\w+): (.*)$", source, re.MULTILINE)
    return {name: value.strip() for name, value in found if name in CARD}


def regions(source: str, what: str) -> list[tuple[int, int]]:
    """First and last line (from 0) of each marked region, its marks included."""
    lines = enumerate(source.splitlines())
    marks = [n for n, line in lines if (found := _MARK.match(line)) and found[2] == what]
    return list(zip(marks[::2], marks[1::2], strict=True))


def _cell(path: Path, line: int, node: NotebookNode) -> Cell:
    meta = dict(node.metadata)
    tags = tuple(meta.pop("tags", ()))
    meta.pop("lines_to_next_cell", None)
    kinds = [kind for kind in _KINDS if kind in meta]
    if len(kinds) > 1:
        raise BuildError(f"{path}:{line - 1}: a cell is one of {', '.join(kinds)}, not both")
    kind = kinds[0] if kinds else node.cell_type
    name = str(meta.pop(kind, ""))
    points = meta.pop("points", None)
    if kinds and not _NAME.fullmatch(name):
        raise BuildError(f"{path}:{line - 1}: {kind}={name!r}: use a-z, 0-9 and - as a name")
    if meta:
        raise BuildError(f"{path}:{line - 1}: unknown in a cell's line: {', '.join(sorted(meta))}")
    if (kind == "check") != isinstance(points, int | float) or (points is not None and points <= 0):
        raise BuildError(f"{path}:{line - 1}: a check, and only a check, has points (above 0)")
    wanted = "markdown" if kind in ("exercise", "markdown") else "code"
    if node.cell_type != wanted:
        raise BuildError(f"{path}:{line - 1}: {kind} must be a {wanted} cell")
    return Cell(kind, node.source, line, name, points or 0, tags)


def _check_opening(lab: Lab) -> None:
    first = lab.cells[0] if lab.cells else Cell("none", "", 1)
    number = lab.path.parent.name[:2]
    if not first.source.startswith(f"# Lab {number}: "):
        raise BuildError(f"{lab.path}:{first.line}: the first cell must begin '# Lab {number}: '")
    for part in OPENING:
        if f"\n{part}" not in first.source:
            raise BuildError(f"{lab.path}:{first.line}: the first cell lacks a line '{part} ...'")
    if not any(cell.source.startswith("## Summary") for cell in lab.cells):
        raise BuildError(f"{lab.path}:{lab.cells[-1].line}: a lab ends with a '## Summary' cell")


def _check_marks(lab: Lab) -> None:
    for cell in lab.cells:
        allowed = {"solution": "SOLUTION", "check": "HIDDEN TESTS"}.get(cell.kind)
        opened = 0
        for number, text in enumerate(cell.source.splitlines(), cell.line):
            found, where = _MARK.match(text), f"{lab.path}:{number}"
            if not found:
                if _LIKE_A_MARK.search(text):
                    raise BuildError(f"{where}: not a mark as nbgrader knows it: {text.strip()}")
                continue
            if found[2] != allowed:
                raise BuildError(f"{where}: {found[2]} has no place in a {cell.kind} cell")
            if (found[1] == "BEGIN") == bool(opened):
                told = f"BEGIN again, after line {opened}" if opened else "END without BEGIN"
                raise BuildError(f"{where}: {told}")
            opened = number if found[1] == "BEGIN" else 0
        if opened:
            raise BuildError(f"{lab.path}:{opened}: BEGIN {allowed} without END")
        if cell.kind == "solution" and not regions(cell.source, "SOLUTION"):
            raise BuildError(f"{lab.path}:{cell.line}: a solution without ### BEGIN SOLUTION")


def _check_exercises(lab: Lab) -> None:
    open_card: Cell | None = None
    solved, names = False, set()
    for cell in lab.cells:
        where = f"{lab.path}:{cell.line}"
        if cell.kind == "exercise":
            if open_card is not None:
                break
            for field, pattern in CARD.items():
                if not re.fullmatch(pattern, read_card(cell.source).get(field, "")):
                    raise BuildError(f"{where}: the card of {cell.name!r} needs '{field}: ...'")
            if not cell.source.startswith("#") or cell.name in names:
                raise BuildError(f"{where}: the card of {cell.name!r} needs a title of its own")
            open_card, solved = cell, False
            names.add(cell.name)
        elif cell.kind in ("solution", "check"):
            if open_card is None or open_card.name != cell.name:
                raise BuildError(f"{where}: {cell.kind} {cell.name!r} without its card before it")
            if cell.kind == "check" and not solved:
                raise BuildError(f"{where}: the check of {cell.name!r} comes before its solution")
            solved = True
            open_card = None if cell.kind == "check" else open_card
    if open_card is not None:
        raise BuildError(f"{lab.path}:{open_card.line}: exercise {open_card.name!r} has no check")
