"""Whole labs: every notebook can be run from top to bottom, solved or as the student gets it.

Some of them are part of `make test`; `make test-labs` runs all.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from hvdlab.builder import execute, find, read

ROOT = Path(__file__).resolve().parents[2]
# Their scripts are content with the sample of the data that comes with the package.
SMALL = ("05", "06", "07")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a `lab` runs for each; those that its module calls USUAL are not "whole"."""
    if "lab" in metafunc.fixturenames:
        for_test = [
            pytest.param(
                path,
                marks=[] if path.parent.name[:2] in metafunc.module.USUAL else [pytest.mark.whole],
                id=path.parent.name,
            )
            for path in find(ROOT / "labs")
        ]
        metafunc.parametrize("lab", for_test)


@pytest.fixture
def run_lab(tmp_path, monkeypatch) -> Callable:
    """Run a notebook of a lab; returns what the check of each exercise said."""

    def run(make: Callable, path: Path) -> dict[str, str]:
        if path.parent.name[:2] in SMALL:
            monkeypatch.setenv("HVDLITE_DATA_SOURCES", "")  # none: the sample
        notebook = execute(make(read(path)), tmp_path, ROOT)
        return {
            cell.id: "".join(o.get("data", {}).get("text/plain", "") for o in cell.outputs)
            for cell in notebook.cells
            if cell.get("metadata", {}).get("nbgrader", {}).get("grade")
        }

    return run
