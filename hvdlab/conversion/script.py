"""The student's script: a copy of one of scripts/, in which each step has a place of its own."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from pathlib import Path

from ..handout import source
from .places import PLACES, Place

STUB = "# YOUR CODE HERE"


@dataclass(frozen=True)
class Script:
    """A script on its way from one process to many.

    `path` is the student's, `original` what it began as, `solution` the same one converted.
    """

    path: Path
    original: Path
    solution: Path

    @property
    def name(self) -> str:
        """Of the original, such as "fashion_mnist_torch.py"."""
        return self.original.name

    @property
    def framework(self) -> str:
        """The last part of the name: torch, keras, tensorflow or tensorflow1."""
        return self.original.stem.rsplit("_", 1)[1]

    def piece(self, step: str) -> str:
        """What stands at the place of a step now.

        Raises:
            ValueError: the script has no such place, or its marks are gone.
        """
        return self._between(self.path.read_text(encoding="utf-8"), step)

    def written(self, *steps: str) -> str | None:
        """The text at these steps; None if one of them is still as it was, or not finished."""
        texts = [self.piece(step) for step in steps]
        begun = [text for text in texts if STUB not in text]
        fresh = _marked(self.original.read_text(encoding="utf-8"), self.name)
        as_before = [self._between(fresh, step) for step in steps]
        changed = [a for a, b in zip(texts, as_before, strict=True) if a.strip() != b.strip()]
        return "\n".join(texts) if len(begun) == len(changed) == len(texts) else None

    @property
    def is_converted(self) -> bool:
        """Whether every step has been written; without places, whether anything has."""
        if not self.steps:
            return self.path.read_text(encoding="utf-8") != self.original.read_text("utf-8")
        return all(self.written(step) for step in PLACES[self.name])

    def put(self, step: str, text: str) -> str:
        """Write a step's text to its place; returns the difference to what it began as.

        Raises:
            SyntaxError: with it the script would be no Python; it stays as it was.
            ValueError: there is no such step.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines()
        first, last = self._marks(lines, step)
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        body = textwrap.indent(textwrap.dedent(text).strip("\n"), indent).splitlines()
        lines[first + 1 : last] = body
        whole = "\n".join(lines) + "\n"
        compile(whole, str(self.path), "exec")
        self.path.write_text(whole, encoding="utf-8")
        before = self._between(_marked(self.original.read_text("utf-8"), self.name), step)
        after = textwrap.dedent("\n".join(body))
        changes = difflib.unified_diff(before.splitlines(), after.splitlines(), n=99, lineterm="")
        return "\n".join(line for line in list(changes)[3:] if line[1:].strip())

    def _between(self, text: str, step: str) -> str:
        lines = text.splitlines()
        first, last = self._marks(lines, step)
        return textwrap.dedent("\n".join(lines[first + 1 : last]))

    def _marks(self, lines: list[str], step: str) -> tuple[int, int]:
        if step not in PLACES[self.name]:
            raise ValueError(f"{self.name} has no step {step!r}; it has {', '.join(self.steps)}")
        found = [line.strip() for line in lines]
        try:
            return found.index(f"# >> step {step}"), found.index(f"# << step {step}")
        except ValueError:
            raise ValueError(
                f"{self.path}: the lines '# >> step {step}' and '# << step {step}' are gone; put "
                "them back, or begin anew: conversion.begin(..., again=True)"
            ) from None

    @property
    def steps(self) -> list[str]:
        """The steps that have a place, in the order of the course."""
        return list(PLACES[self.name])


_current: Script | None = None


def begin(name: str, path: str | Path, again: bool = False) -> Script:
    """Copy scripts/`name` to `path`, each step's place marked; what is there already stays.

    Args:
        again: begin anew: what was written is lost.

    Raises:
        ValueError: the course has no steps for it.
    """
    global _current
    if name not in PLACES:
        raise ValueError(f"there are no steps for {name!r}, but for {', '.join(PLACES)}")
    original = _find(name)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if again or not path.exists():
        text = _marked(original.read_text(encoding="utf-8"), name)
        path.write_text(text, encoding="utf-8")
    _current = Script(path, original, solution(name))
    return _current


def solution(name: str) -> Path:
    """Where the converted script of that name lies: with hvdlab, as students may not have it."""
    return source() / "scripts" / "solutions" / name


def current() -> Script:
    """The script that the notebook began last.

    Raises:
        RuntimeError: none yet.
    """
    if _current is None:
        raise RuntimeError("no script yet: run the cell with conversion.begin(...) first")
    return _current


def magic(line: str, cell: str) -> None:
    """`%%step N`: the cell is what stands at step N; shows what it changes."""
    script = current()
    step = line.strip()
    marks = ("### BEGIN SOLUTION", "### END SOLUTION")
    cell = "\n".join(line for line in cell.splitlines() if line.strip() not in marks)
    changes = script.put(step, cell)
    where = f"{script.path}, step {step}"
    if STUB in cell:
        print(f"{where}: not written yet")
    else:
        print(f"{where}:\n{changes}")


def _find(name: str) -> Path:
    """The plain script in the course's folder that the notebook lies in; else hvdlab's own."""
    folders = (Path.cwd(), *Path.cwd().parents, source())
    places = (folder / "scripts" / name for folder in folders)
    return next(place for place in places if place.is_file())


def _marked(text: str, name: str) -> str:
    """The script with two lines around each step's place."""
    lines = text.splitlines()
    for step, place in PLACES[name].items():
        first, last = _locate(lines, place, f"step {step} of {name}")
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        lines.insert(last, f"{indent}# << step {step}")
        lines.insert(first, f"{indent}# >> step {step}")
    return "\n".join(lines) + "\n"


def _locate(lines: list[str], place: Place, what: str) -> tuple[int, int]:
    """First line of the place, and the one after its last; the same for an empty place."""
    found = [n for n, line in enumerate(lines) if line.strip().startswith(place.first)]
    if len(found) != 1:
        raise ValueError(f"{what}: {len(found)} lines begin with {place.first!r}")
    first = found[0]
    if place.is_empty:
        return first, first
    last = next(n for n in range(first, len(lines)) if lines[n].strip().startswith(place.last))
    return first, last + 1
