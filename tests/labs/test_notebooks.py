"""Every notebook runs from top to bottom: solved, and as the student gets it, with nothing written.

Some of them do so in the usual run; `make test-labs` runs all.
"""

from pathlib import Path

import pytest

from hvdlab.builder import execute, find, instructor, read, student

ROOT = Path(__file__).resolve().parents[2]
LABS = find(ROOT / "labs")
USUAL_SOLVED = ("00", "01", "02", "03", "04")
USUAL_EMPTY = ("00",)
# Their scripts are content with the sample of the data that comes with the package.
SMALL = ("05", "06", "07")


def labs(usual: tuple[str, ...]) -> list:
    """All labs as parameters; those that are not `usual` are for `make test-whole`."""
    marks = {path: "slow" if path.parent.name[:2] in usual else "whole" for path in LABS}
    return [
        pytest.param(path, marks=getattr(pytest.mark, mark), id=path.parent.name)
        for path, mark in marks.items()
    ]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a notebook of a lab; returns what the check of each exercise said."""

    def run(make, path: Path) -> dict[str, str]:
        if path.parent.name[:2] in SMALL:
            monkeypatch.setenv("HVDLITE_DATA_SOURCES", "")  # none: the sample
        notebook = execute(make(read(path)), tmp_path, ROOT)
        return {
            cell.id: "".join(o.get("data", {}).get("text/plain", "") for o in cell.outputs)
            for cell in notebook.cells
            if cell.get("metadata", {}).get("nbgrader", {}).get("grade")
        }

    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", labs(USUAL_SOLVED))
def test_a_solved_lab_runs_and_every_exercise_is_done(path, run):
    verdicts = run(instructor, path)
    assert verdicts
    for name, told in verdicts.items():
        assert ": done" in told and "✘" not in told and "○" not in told, (name, told)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", labs(USUAL_EMPTY))
def test_a_students_lab_runs_and_says_what_is_not_done_yet(path, run):
    verdicts = run(student, path)
    assert verdicts
    for name, told in verdicts.items():
        assert "not done yet" in told and "✘" not in told, (name, told)
