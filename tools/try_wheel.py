"""Try a wheel as somebody does who has nothing else: python tools/try_wheel.py WHEEL.

It is installed by pip, with its extras, into an empty virtual environment; then the handout is
written, `hvdlab doctor` asked and lab 06 solved, with a home folder and a folder for temporary
files that nobody else has; then it is uninstalled. Everything lies in a folder that is removed.

Stops with an error, and the output of what failed, where a step does not end well or something
of the wheel is left.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "mpi,torch,labs"
# The solved notebook as it was written; a check that finds an exercise not done is an error.
SOLVE = """
import sys
from pathlib import Path
import nbformat
from hvdlab.builder import execute

(notebook,) = Path("course/labs").glob("06_*/solution/*.ipynb")
execute(nbformat.read(notebook, as_version=4), Path("course/labs"), strict=True)
"""


def files(folder: Path) -> set[str]:
    """All files below a folder, but for what Python compiles by itself of other packages."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name or "hvd" in name}


def main(wheel: Path, folder: Path) -> None:
    """Try the wheel in a folder of its own; raises SystemExit where something is wrong."""
    environment = {
        **{name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_"))},
        "PATH": f"{folder / 'venv' / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "HVDLITE_DATA_SOURCES": "",  # the sample of the data that the wheel brings
    }
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    venv.create(folder / "venv", with_pip=True)

    def run(*words: str | Path) -> str:
        print("-->", *words if "-c" not in words else words[:-1], flush=True)
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\nended with code {done.returncode}")
        return done.stdout

    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "-c", ROOT / "constraints.txt", f"{wheel.resolve()}[{EXTRAS}]")
    run(*pip, "uninstall", "--yes", "hvdlite")
    before = files(folder / "venv")
    run(*pip, "install", "--no-deps", wheel.resolve())
    run("hvdlab", "handout", "--all", "course")
    if "Ready for the course." not in (told := run("hvdlab", "doctor")):
        sys.exit(told)
    run(python, "-c", SOLVE)
    run(*pip, "uninstall", "--yes", "hvdlite")
    if left := sorted(files(folder / "venv") - before | files(folder / "tmp")):
        sys.exit(f"left behind: {', '.join(left)}")
    print("Handout written, doctor content, lab 06 solved, nothing left.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="wheel-") as place:
        main(Path(sys.argv[1]), Path(place))
