"""One real Slurm for all tests: two nodes on this machine."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hvdlab.slurm.cluster import SlurmError, pmix_cure, programs
from hvdlab.slurm.script import Request, sbatch_file

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds for anything to happen; it ends a hang, on a busy machine, too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a real cluster are skipped where there is no Slurm."""
    try:
        programs()
        reason = pmix_cure()
    except SlurmError as error:
        reason = str(error)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(3 * LIMIT))
            if reason and {"cluster", "another"}.intersection(item.fixturenames):
                item.add_marker(pytest.mark.skip(reason=f"needs Slurm: {reason}"))


def until(ready: Callable[[], object], what: str, limit: float = LIMIT) -> object:
    """Wait for a true answer and return it."""
    deadline = time.monotonic() + limit
    while not (answer := ready()):
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.2)
    return answer


def processes_with(variable: str) -> list[psutil.Process]:
    """Every process of this machine that has `variable` in its environment, by /proc alone."""
    found = []
    for process in psutil.process_iter():
        try:
            if variable in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            pass
    return found


class Slurm:
    """A cluster as a student sees it: by the commands."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        self.kept: set[str] = set()  # jobs that outlive a test
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))},
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
            "HVDLITE_SLURM_DIR": str(folder),
            "COLUMNS": "200",
        }
        (work / "slurm").symlink_to(ROOT / "slurm")
        (work / "scripts").symlink_to(ROOT / "scripts")

    until = staticmethod(until)
    processes_with = staticmethod(processes_with)

    def run(self, *words: str, limit: float = LIMIT, **more: str) -> subprocess.CompletedProcess:
        """Run a program in the folder of the student's work."""
        return subprocess.run(
            words, env=self.environment | more, cwd=self.work, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=limit,
        )  # fmt: skip

    def hvdlab(self, *words: str, **more: str) -> subprocess.CompletedProcess:
        """`hvdlab slurm ...`"""
        program = "from hvdlab.cli import app; app()"
        return self.run(sys.executable, "-c", program, "slurm", *words, **more)

    def start(self, *words: str) -> subprocess.Popen:
        """Start `hvdlab slurm ...` and don't wait."""
        program = "from hvdlab.cli import app; app()"
        return subprocess.Popen(
            [sys.executable, "-c", program, "slurm", *words], env=self.environment, cwd=self.work,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def good(self, *words: str) -> str:
        """The output of an `hvdlab slurm` command that must succeed."""
        done = self.hvdlab(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def talk(self) -> None:
        """Do what `eval "$(hvdlab slurm env)"` does in a shell."""
        for line in self.good("env").splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            self.environment[name] = value

    def submit(self, script: Path | str, *options: str, arguments: tuple[str, ...] = ()) -> str:
        """sbatch a file, or a script's text; returns the job's number. Output: JOB.out."""
        if not isinstance(script, Path):
            text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
            script = self.work / "job.sbatch"
            script.write_text(text)
        words = ["sbatch", "--parsable", "--output=%j.out", *options, str(script), *arguments]
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def train(self, request: Request, *options: str) -> str:
        """Submit the sbatch file for a request."""
        return self.submit(sbatch_file(request), *options)

    def output(self, job: str) -> str:
        """What the job has written so far."""
        path = self.work / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> str:
        """Such as PENDING, RUNNING, COMPLETED."""
        shown = self.run("scontrol", "show", "job", job).stdout
        return (shown.partition("JobState=")[2].split() or ["PENDING"])[0]  # no answer: not over

    def started(self, jobs: list[str], ready: Callable[[], object], what: str) -> None:
        """Wait until jobs that never end by themselves are so far; one that has ended is told."""

        def look() -> object:
            if answer := ready():
                return answer
            asked = self.run("squeue", "-h", "-t", "PD,CF,R", "-o", "%i")
            gone = not asked.returncode and set(jobs) - set(asked.stdout.split())
            assert not gone, f"ended before {what}: {gone}"
            return None

        try:
            until(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.about(jobs)}") from None

    def about(self, jobs: list[str]) -> str:
        """The cluster and the jobs, for the message of a test that fails."""
        asked = [("sinfo", "-N", "-l"), ("squeue", "-l")]
        asked += [("scontrol", "show", "job", job) for job in jobs]
        told = [self.run(*words).stdout for words in asked]
        told += [f"--- output of {job}\n{self.output(job)}" for job in jobs]
        return "\n".join(told)

    def finish(self, job: str, state: str = "COMPLETED", limit: float = LIMIT) -> str:
        """Wait for the job's end, which must be this one; returns its output."""
        over = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
        try:
            end = until(
                lambda: (s := self.state(job)) not in over and s, f"the end of {job}", limit
            )
        except AssertionError as error:
            self.run("scancel", job)
            raise AssertionError(f"{error}\n{self.output(job)}") from None
        assert end == state, self.output(job)
        return self.output(job)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    base = tmp_path_factory.mktemp("slurm")
    (base / "work").mkdir()
    one = Slurm(base / "c", base / "work")
    try:
        one.good("up", "--nodes", "2")
        one.talk()
        yield one
    finally:
        one.hvdlab("down")
    assert not one.folder.exists()


@pytest.fixture(scope="session")
def data_dir(full_sets):
    """The folder with all of Fashion-MNIST."""
    return full_sets["fashion-mnist"].folder


@pytest.fixture
def another(cluster, tmp_path):
    """A second cluster, not yet up; down at the end."""
    (tmp_path / "work").mkdir()
    one = Slurm(tmp_path / "c", tmp_path / "work")
    yield one
    one.hvdlab("down")


@pytest.fixture
def slurm(cluster):
    """The cluster, with two nodes that are free; no job is left behind."""
    yield cluster

    def jobs():
        return set(cluster.run("squeue", "-h", "-o", "%i").stdout.split()) - cluster.kept

    if left := jobs():
        cluster.run("scancel", *left)
    for node in cluster.run("sinfo", "-h", "-N", "-t", "down", "-o", "%N").stdout.split():
        cluster.good("resume", node)
    cluster.until(lambda: not jobs(), "an empty queue")
