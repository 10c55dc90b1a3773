"""Every lab runs from top to bottom: solved, and as the student gets it, with nothing written."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvdlab.builder import execute, find, instructor, read, student

ROOT = Path(__file__).resolve().parents[2]
LABS = find(ROOT / "labs")


def verdicts(notebook) -> dict[str, str]:
    """What the check of each exercise said."""
    return {
        cell.id: "".join(o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        for cell in notebook.cells
        if cell.get("metadata", {}).get("nbgrader", {}).get("grade")
    }


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.parent.name)
def test_a_lab_runs_from_top_to_bottom(path, tmp_path):
    lab = read(path)
    folders = [tmp_path / "student", tmp_path / "solution"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as both:
        runs = [
            both.submit(execute, make(lab), folder, ROOT)
            for make, folder in zip((student, instructor), folders, strict=True)
        ]
        empty, solved = (verdicts(run.result()) for run in runs)
    assert solved and set(empty) == set(solved)
    for name, told in solved.items():
        assert ": done" in told and "✘" not in told and "○" not in told, (name, told)
    for name, told in empty.items():
        assert "not done yet" in told and "✘" not in told, (name, told)
