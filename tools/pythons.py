"""Run the tests that need no framework on the oldest and on the newest Python: `make test-pythons`.

Each gets an environment of its own in build/, with the versions of constraints.txt. A Python that
is not on this machine is fetched by uv; where that can't be had, this ends with an error.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.13")
NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyyaml")
TESTS = (
    "core/test_agreement.py",
    "core/test_algorithms.py",
    "core/test_collectives.py",
    "launch/test_ends.py",
    "launch/test_failure.py",
    "launch/test_hosts.py",
    "launch/test_mpi.py",
    "launch/test_output.py",
    "launch/test_run.py",
)


def main(uv: str) -> None:
    """Install and test one Python after the other; exit with the first failure's code."""
    for version in PYTHONS:
        venv = ROOT / "build" / f"python{version}"
        print(f"--> Python {version}, in {venv.relative_to(ROOT)}", flush=True)
        run(uv, "venv", "--quiet", "--clear", "--seed", "--python", version, venv)
        python = venv / "bin" / "python"
        install = ("pip", "install", "--quiet", "--python", python, "-c", "constraints.txt")
        run(uv, *install, "-e", ".[mpi]", *NEEDED)
        tests = [Path("tests", name) for name in TESTS]
        run(python, "-m", "pytest", "-q", "-n", "3", *tests)


def run(*command: str | Path) -> None:
    """Run a command in the repository, by the environment's Python alone."""
    settings = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=settings)
    if done.returncode != 0:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
