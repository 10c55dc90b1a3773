"""README.md for a package index, where links and pictures within the repository lead nowhere.

Hatchling calls it when it builds: links become those of the project's Source in pyproject.toml.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?:|#|mailto:)([^)]+)\)")


def absolute(text: str, source: str) -> str:
    """The text with every relative link and picture at its place in the repository."""

    def at_its_place(match: re.Match[str]) -> str:
        is_picture, label, path = match.groups()
        return f"{is_picture}{label}{source}/{'raw' if is_picture else 'blob'}/main/{path})"

    return LINK.sub(at_its_place, text)


class Readme(MetadataHookInterface):
    """Sets the field `readme` of the project's metadata."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling with the table [project]."""
        text = Path(self.root, "README.md").read_text()
        text = absolute(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
