"""What students get, and one lab set back."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab import handout
from hvdlab.conversion import script

ROOT = Path(__file__).resolve().parents[2]


def hvdlab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hvdlab", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def course(tmp_path):
    handout.write(tmp_path / "course")
    return tmp_path / "course"


def test_students_get_the_labs_and_no_answers(course):
    names = {str(path.relative_to(course)) for path in course.rglob("*") if path.is_file()}
    assert sum(name.endswith(".ipynb") for name in names) == 12
    assert {"labs/README.md", "scripts/mnist_torch.py", "slurm/pytorch.sbatch"} <= names
    for name in names:
        assert "solution" not in name and not name.endswith("lab.py"), name
        assert b"### BEGIN SOLUTION" not in (course / name).read_bytes(), name
    for page in course.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"
    # Answers that come later go into the same folder.
    handout.write(course, everything=True)
    assert (course / "labs/06_pytorch/solution/06_pytorch.ipynb").is_file()
    assert (course / "scripts/solutions/mnist_torch.py").is_file()


def test_a_lab_is_set_back_and_the_work_kept_beside_it(course):
    lab = course / "labs/06_pytorch"
    original = (lab / "06_pytorch.ipynb").read_bytes()
    for turn in (1, 2):
        (lab / "06_pytorch.ipynb").write_text(f"mine {turn}")
        (lab / "work").mkdir()
        (lab / "work/my_torch.py").write_text("converted")
        (course / "scripts/mnist_torch.py").write_text("edited")
        (course / "scripts/mnist_keras.py").write_text("another lab's")
        done = hvdlab("reset", "6", cwd=lab if turn == 1 else course)
        kept = course / f"labs/old_06_pytorch_{turn}"
        assert done.returncode == 0 and str(kept) in done.stdout, done.stderr
        assert (kept / "06_pytorch.ipynb").read_text() == f"mine {turn}"
        assert (kept / "work/my_torch.py").read_text() == "converted"
        assert (kept / "scripts/mnist_torch.py").read_text() == "edited"
        assert [path.name for path in lab.iterdir()] == ["06_pytorch.ipynb"]
        assert (lab / "06_pytorch.ipynb").read_bytes() == original
        assert (course / "scripts/mnist_torch.py").read_text() != "edited"
        assert (course / "scripts/mnist_keras.py").read_text() == "another lab's"
    (lab / ".ipynb_checkpoints").mkdir()
    (lab / ".ipynb_checkpoints/06_pytorch-checkpoint.ipynb").write_bytes(original)
    again = hvdlab("reset", "6", cwd=lab)
    assert again.returncode == 0 and "as it was handed out" in again.stdout
    assert not (course / "labs/old_06_pytorch_3").exists()  # there was nothing to keep


def test_a_reset_says_what_it_can_not_do(course, tmp_path):
    for number, folder, why in (
        ("12", course, "there is no lab 12; there are 00, 01"),
        ("../x", course, "there is no lab ../x"),
        ("06", tmp_path, "is in no folder of the course"),
        ("06", ROOT, "work in a copy: hvdlab handout FOLDER"),
    ):
        done = hvdlab("reset", number, cwd=folder)
        assert done.returncode == 1 and why in done.stderr and "Traceback" not in done.stderr
    assert (ROOT / "labs/06_pytorch/lab.py").is_file()


def test_labs_work_without_the_converted_scripts(course, monkeypatch):
    monkeypatch.chdir(course / "labs/06_pytorch")
    begun = script.begin("fashion_mnist_torch.py", "work/my_torch.py")
    assert begun.original == course / "scripts/fashion_mnist_torch.py"
    assert begun.path.is_file() and begun.solution.is_file()
    assert not begun.solution.is_relative_to(course)
