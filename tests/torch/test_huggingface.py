"""The programs of docs/huggingface.md, on two ranks."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from mpi import launch

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = dict(
    re.findall(
        r"```python\n# (\w+)\.py\n(.*?)```", (ROOT / "docs/huggingface.md").read_text(), re.S
    )
)
VERSIONS = ("transformers==5.24.0", "accelerate==1.15.0")  # those that the page names


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> str:
    """A folder with both packages and what they need besides ours."""
    folder = tmp_path_factory.mktemp("huggingface")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(next(p for p in sys.path if p.endswith("site-packages")))
    words = ["--python", folder / "bin/python", "install", "--quiet", *VERSIONS]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600)
    return str(site)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["huggingface_trainer", "huggingface_accelerate"])
def test_a_program_of_the_page(name, packages, tmp_path):
    program = f"import sys; sys.path.append({packages!r})\n{PROGRAMS[name]}"
    program = program.replace('"out"', repr(str(tmp_path / "out")))
    outcome = launch(f"{program}\nprint('the end')\n", 2)
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("the end") == 2
