"""From a lab's cells to its two notebooks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from .source import CARD, Cell, Lab, read_card, regions

STUB = ("# YOUR CODE HERE", "pass")
_WEIGHT = {
    "core": "core: do this one first",
    "useful": "useful: do it if there is time",
    "extra": "extra: for the fast ones",
}


def student(lab: Lab) -> NotebookNode:
    """The notebook that students get: solutions and hidden tests taken out, no outputs."""
    return _notebook(lab, solved=False)


def instructor(lab: Lab) -> NotebookNode:
    """The solved notebook, not yet executed; nbgrader takes it as its source."""
    return _notebook(lab, solved=True)


def write(notebook: NotebookNode) -> str:
    """A notebook as the text of its file; the same text for the same notebook."""
    return nbformat.writes(notebook, version=4) + "\n"


def _notebook(lab: Lab, solved: bool) -> NotebookNode:
    taken: set[str] = set()
    return new_notebook(
        cells=[_cell(cell, _identify(cell, taken), solved) for cell in lab.cells],
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )


def _cell(cell: Cell, identity: str, solved: bool) -> NotebookNode:
    source = cell.source
    if cell.kind == "exercise":
        source = _draw_card(source)
    elif not solved:
        source = _cut(_cut(source, "SOLUTION", STUB), "HIDDEN TESTS", ())
    new = new_markdown_cell if cell.kind in ("markdown", "exercise") else new_code_cell
    node = new(source, id=identity)
    if cell.tags:
        node.metadata["tags"] = list(cell.tags)
    if cell.kind in ("solution", "check"):
        node.metadata["nbgrader"] = _nbgrader(cell, identity)
    return node


def _nbgrader(cell: Cell, identity: str) -> dict[str, object]:
    check = cell.kind == "check"
    marks = {"grade": check, "locked": check, "solution": not check, "task": False}
    points = {"points": cell.points} if check else {}
    return {**marks, **points, "grade_id": identity, "schema_version": 3}


def _identify(cell: Cell, taken: set[str]) -> str:
    """From the name of the exercise, or from the text: the same in both notebooks."""
    digest = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:10]
    name = f"{cell.kind}-{cell.name}" if cell.name else f"{cell.kind}-{digest}"
    identity, more = name, 2
    while identity in taken:
        identity, more = f"{name}-{more}", more + 1
    taken.add(identity)
    return identity


def _draw_card(source: str) -> str:
    fields = read_card(source)
    pattern = "|".join(CARD)
    rest = re.sub(rf"^({pattern}): .*\n?", "", source, flags=re.MULTILINE)
    title, _, text = rest.partition("\n")
    difficulty = int(fields["difficulty"])
    dots = "●" * difficulty + "○" * (3 - difficulty)
    card = (
        f"> **Goal:** {fields['goal']}  \n> {fields['minutes']} minutes · difficulty {dots} · "
        f"{_WEIGHT[fields['importance']]}"
    )
    return f"{title}\n\n{card}\n\n{text.strip()}".rstrip()


def _cut(source: str, what: str, stub: Sequence[str]) -> str:
    lines = source.splitlines()
    for first, last in reversed(regions(source, what)):
        indent = re.match(r"\s*", lines[first])[0]
        lines[first : last + 1] = [indent + line for line in stub]
    return "\n".join(lines).rstrip()
