"""The library of common mistakes: each is a small edit of a converted script.

`hvdlab sabotage` puts one of them into a working script. The tests prove the check with the same
table: every mistake fails at its own step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..course import ALL, Script

Edits = list[tuple[str, str]]


@dataclass(frozen=True)
class Mistake:
    """One mistake: its name, what is wrong, the steps that it breaks, its edits in each script."""

    name: str
    what: str
    breaks: tuple[str, ...]
    edits: dict[str, Edits]

    def apply(self, script: Script, text: str) -> str:
        """The text with the mistake. Raises ValueError if the text has not what is replaced."""
        for old, new in self.edits[script.name]:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old.strip().splitlines()[0]!r} is not there once")
            text = text.replace(old, new)
        return text


def mistake(name: str, what: str, breaks: str, **edits: Edits) -> Mistake:
    """A mistake from its edits, with the scripts named by their stems."""
    by_file = {f"{stem}.py": changes for stem, changes in edits.items()}
    return Mistake(name, what, tuple(breaks.split()), by_file)


def all_mistakes() -> list[Mistake]:
    """All of them; a name may come once for each framework."""
    from . import keras, lightning, tensorflow, torch

    return [*torch.MISTAKES, *lightning.MISTAKES, *keras.MISTAKES, *tensorflow.MISTAKES]


def variants() -> list[tuple[Script, Mistake]]:
    """Every mistake in every script that it is made for."""
    scripts = {script.name: script for script in ALL}
    return [(scripts[name], each) for each in all_mistakes() for name in each.edits]


def fitting(script: Script, path: Path) -> list[Mistake]:
    """The mistakes that can be put into this file."""
    text, found = path.read_text(), []
    for each in all_mistakes():
        if script.name in each.edits:
            try:
                each.apply(script, text)
            except ValueError:
                continue
            found.append(each)
    return found
