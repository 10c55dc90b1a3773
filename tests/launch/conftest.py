"""`horovodrun(...)` runs the launcher and then checks that nothing of it is left."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCHER = [sys.executable, "-m", "hvdrun"]
MARK = "HVDLITE_TEST_MARK"


def marked(mark: str, word: str = "") -> list[psutil.Process]:
    """The processes that carry a mark, which no other job has, and a word in their command."""
    found = []
    for process in psutil.process_iter():
        try:
            carries = process.environ().get(MARK) == mark and word in " ".join(process.cmdline())
            if carries and process.status() != "zombie":
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


class Launcher:
    """Starts launchers whose processes carry a mark, in a temporary folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.command = LAUNCHER
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(folder),
            MARK: self.mark,
        }

    def start(self, *words: object, env: dict | None = None, **more: object) -> subprocess.Popen:
        more = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | more
        environment = self.environment | (env or {})
        return subprocess.Popen([*self.command, *map(str, words)], env=environment, **more)

    def __call__(self, *words: object, timeout: float = 60, **more: object):
        """Run to the end; the result has its output as text (`out`, `err`) and as bytes."""
        process = self.start(*words, **more)
        try:
            process.stdout_bytes, process.stderr_bytes = process.communicate(timeout=timeout)
        finally:
            process.kill()
        process.out = (process.stdout_bytes or b"").decode(errors="replace")
        process.err = (process.stderr_bytes or b"").decode(errors="replace")
        return process

    def python(self, np: int, program: str, *options: object, **more: object):
        """Run a Python program, given as text, as `np` ranks."""
        return self("-np", np, *options, sys.executable, "-c", program, **more)

    def processes(self) -> list[psutil.Process]:
        return marked(self.mark)

    def nothing_left(self) -> None:
        end = time.monotonic() + 15
        while self.processes() and time.monotonic() < end:
            time.sleep(0.1)
        left = [str(process) for process in self.processes()]
        for process in self.processes():
            process.kill()
        assert not left
        assert not list(self.folder.iterdir())


@pytest.fixture
def horovodrun():
    folder = Path(tempfile.mkdtemp(prefix="hr"))  # short, as MPI puts sockets there
    launcher = Launcher(folder)
    yield launcher
    try:
        launcher.nothing_left()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def ranks_left(monkeypatch):
    """Tells which ranks of `hvdlite.run` are left that this test has started."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    return lambda: [p.pid for p in marked(mark, "hvdrun.function")]


@pytest.fixture
def one_line():
    """Checks for a user's mistake: one line on stderr, no traceback, code 2; gives the line."""

    def check(result) -> str:
        assert result.returncode == 2, result.err
        assert result.out == ""
        assert result.err.startswith("horovodrun: ")
        assert result.err.count("\n") == 1
        return result.err

    return check
