"""A table of results: printed as Markdown while it grows, and kept as JSON."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = "HVDLITE_BENCHMARKS"  # the variable that names the folder for the JSON files


class Table:
    """`columns` are names with formats, which hold the units: {"time": "{:.1f} us"}.

    The first column names the row. `unit` is that of the columns that are plotted: all but those
    of ratios, whose names have a slash. Where the environment variable HVDLITE_BENCHMARKS names a
    folder, the table is written there after each row, as SCRIPT-ARGUMENTS-NUMBER.json.
    `silent` is for ranks other than 0.
    """

    _made = 0

    def __init__(
        self, title: str, facts: str, columns: dict[str, str], unit: str, silent: bool = False
    ):
        Table._made += 1
        self._silent = silent
        self._formats = list(columns.values())
        name = "-".join([Path(sys.argv[0]).stem, *sys.argv[1:], f"{Table._made}.json"])
        self._path = Path(os.environ[FOLDER]) / name if FOLDER in os.environ else None
        self._content = {
            "title": title,
            "facts": f"{facts}; {_processor()}, {os.cpu_count()} cores",
            "columns": list(columns),
            "unit": unit,
            "rows": [],
        }
        self._print(f"# {title}\n{self._content['facts']}\n")
        self._line(list(columns))
        self._line(["---"] * len(columns))

    def row(self, *values: str | float | None) -> None:
        """Add a row; None leaves its cell empty."""
        cells = zip(self._formats, values, strict=True)
        self._line(["" if value is None else form.format(value) for form, value in cells])
        self._content["rows"].append(values)
        if self._path and not self._silent:
            self._path.write_text(json.dumps(self._content, indent=1))

    def _line(self, cells: Sequence[str]) -> None:
        self._print(f"| {' | '.join(cells)} |")

    def _print(self, text: str) -> None:
        if not self._silent:
            print(text, flush=True)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
