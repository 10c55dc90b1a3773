"""Run the tests that need no framework on the oldest and on the newest Python: `make test-pythons`.

Each gets an environment of its own in build/, with the versions of constraints.txt. A Python that
is not on this machine is fetched by uv; one that can't be had is an error. With `--short`, as CI
runs it, such a Python is told of and left out, and only the core is tested, not the launcher.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.13")
NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyyaml")
CORE = ("core",)
LAUNCHER = (
    "launch/test_ends.py",
    "launch/test_failure.py",
    "launch/test_hosts.py",
    "launch/test_mpi.py",
    "launch/test_output.py",
    "launch/test_run.py",
)


def main() -> int:
    """Install and test one Python after the other; the first failure's exit code."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("uv", type=os.path.abspath)
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    tests = CORE if args.short else CORE + LAUNCHER
    for version in PYTHONS:
        found = find(args.uv, version)
        if found is None:
            print(f"Python {version} is not here, and uv could not fetch it.", file=sys.stderr)
            if args.short:
                continue
            return 1
        if code := test(args.uv, version, found, tests):
            return code
    return 0


def find(uv: str, version: str) -> str | None:
    """The path of a Python that is here, also as pyenv keeps it, or that uv fetches."""
    ask = (uv, "python", "find", "--no-project", version)
    if not (answer := run(*ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)).returncode:
        return answer.stdout.strip()
    kept = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    if path := max(kept, default=None):
        return str(path)
    if run(uv, "python", "install", version).returncode:
        return None
    return run(*ask, stdout=subprocess.PIPE).stdout.strip()


def test(uv: str, version: str, found: str, tests: tuple[str, ...]) -> int:
    """The exit code of the tests, or of the installation."""
    venv = ROOT / "build" / f"python{version}"
    print(f"--> Python {version}, in {venv.relative_to(ROOT)}", flush=True)
    python = venv / "bin" / "python"
    install = (uv, "pip", "install", "--quiet", "--python", python, "-c", "constraints.txt")
    steps = (
        (uv, "venv", "--quiet", "--clear", "--seed", "--python", found, venv),
        (*install, "-e", ".[mpi]", *NEEDED),
        (python, "-m", "pytest", "-q", "-n", "4", *(Path("tests", name) for name in tests)),
    )
    for step in steps:
        if code := run(*step).returncode:
            return code
    return 0


def run(*command: str | Path, **options: int) -> subprocess.CompletedProcess:
    """Run a command in the repository, by the environment's Python alone."""
    settings = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=settings, text=True, **options)


if __name__ == "__main__":
    sys.exit(main())
