"""Write constraints.txt anew: the newest versions that pyproject.toml admits, for every Python.

PyTorch keeps its version (CUDA builds of it lie around for longer than for the newest); to move
it, edit its line in constraints.txt first.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
EXTRAS = ["mpi", "mpich", "impi", "torch", "torchvision", "lightning", "tensorflow"]
EXTRAS += ["tensorflow-cpu", "estimator", "gpu", "gpu-cuda13", "labs", "grading", "test"]
TOOLS = ["uv", "hatchling", "editables"]
# CUDA's libraries follow from the builds of PyTorch, TensorFlow and CuPy; the rest is not Linux.
LEFT_OUT = re.compile(r"^(nvidia-|cuda-|triton|appnope|colorama|pywinpty|setuptools=|wheel=)")


def main() -> None:
    """Resolve with uv and rewrite the file under its own heading."""
    old = FILE.read_text().splitlines()
    wanted = [*TOOLS, *(line for line in old if line.startswith("torch=="))]
    command = ["uv", "pip", "compile", "--universal", "--python-version", "3.10", "--quiet"]
    command += ["--no-header", "--no-annotate", "pyproject.toml", "-"]
    command += [f"--extra={name}" for name in EXTRAS]
    found = subprocess.run(
        command, cwd=ROOT, input="\n".join(wanted), text=True, capture_output=True
    )
    if found.returncode != 0:
        sys.exit(f"uv found no set of versions that fits:\n{found.stderr}")
    heading = [line for line in old if line.startswith("#")]
    lines = [line for line in found.stdout.splitlines() if not LEFT_OUT.match(line)]
    FILE.write_text("\n".join(heading + lines) + "\n")
    print(f"{FILE.name}: {len(lines)} lines")


if __name__ == "__main__":
    main()
