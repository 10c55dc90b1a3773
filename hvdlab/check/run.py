"""Runs a student's script on two ranks, under observation and within limits."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import psutil

from hvdrun.mpi import FOLDER_VARIABLES

from .. import watchdog
from ..data.catalog import SETS
from ..data.sample import load_sample
from ..warm import Nest
from .course import TEST, TRAIN
from .runtime_facts import GPUS

MARK = "HVDLAB_CHECK"  # in the environment of all processes of a check: its token
RANKS = 2
MEMORY_MB = 4096  # a rank's own memory
FILE_MB = 256
OUTPUT_MB = 2  # what a rank may print
DISK_MB = 1024  # all that the script may write
PROCESSES = 64
FOLDER_MB = 16  # of what lies beside the script
BESIDE = ("*", "*/*", "*/*/*")
MOST_BESIDE = 200  # files at each depth
STALL_S = 30  # a rank that is at work and does not come; a proven deadlock ends at once
TIME_S = 120.0
MOST_TEXTS = 20
TEXTS = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".log")  # in which metrics are reported
SILENCE_S = STALL_S + 10.0  # in which nothing is seen of any rank, at least; see _Silence
TIMES = 3  # what a right script takes in all: also at least
ANSWER_S = 5.0  # in which a rank says where it is
ASKED = "where-are-you"  # the file that asks it
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
         "TZ", "MPI4PY_LIBMPI", "HVDLITE_MPI", "HVDLAB_GRADING")  # fmt: skip
# What the ranks of a script import, for `warm`.
IMPORTS = {
    "torch": ("torch", "torch._dynamo"),
    **dict.fromkeys(("keras", "tensorflow", "tensorflow1"), ("tensorflow", "keras")),
}
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Recording:
    """What was seen of a run: the events of each rank, what it printed, and which files it made.

    `stopped` says which limit ended the run, and is empty where none did. `alone` are the events of
    a run on one rank, where one was needed to know what one process does; `without_gpus` those of
    ranks on one host that has none. `texts` are the lines of what rank 0 wrote as text, by file.
    """

    events: list[list[dict[str, Any]]]
    printed: list[list[str]]
    logged: list[list[str]]
    files: list[list[str]]
    stopped: str = ""
    alone: list[dict[str, Any]] = field(default_factory=list)
    without_gpus: list[list[dict[str, Any]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)


def observe(
    script: Path,
    phases: list[list[str]],
    limit: float = TIME_S,
    steps: int | None = None,
    nest: Nest | None = None,
    np: int = RANKS,
    gpus: int = GPUS,
    reference: Callable[..., Recording] | None = None,
    given_up: threading.Event | None = None,
    variables: list[list[str]] | None = None,
) -> Recording:
    """Run the script on `np` ranks, once for each list of arguments, and tell what was seen.

    "{home}" in an argument stands for a folder that each rank has for itself, so that it shows
    which rank wrote what. The script works in a copy of its folder.

    Args:
        limit: seconds after which the run is ended.
        steps: the most that Keras' fit takes in an epoch that has a number of steps, with two
            epochs at most; None: as many as the script wants.
        nest: of `warm`, where one check at a time runs.
        gpus: how many the host is pretended to have.
        reference: a run of a right script, which takes `given_up` too. Where nothing happens for
            much longer than that takes on this machine, the run is ended before the limit.
        given_up: set from outside, it ends the run.
        variables: for each run, by the names of the course's options, what the script is told where
            it asks its environment for one; by default nothing.

    Raises OSError if the script can't be read.
    """
    script = script.resolve(strict=True)
    within = nest.folder if nest else None
    with tempfile.TemporaryDirectory(prefix="hvdlab-check-", dir=within) as place:
        folder = Path(place).resolve()
        _write_data(folder / "data")
        for rank in range(np):
            copy_folder(script, folder / f"rank-{rank}" / "work")
            for name in ("logs", "more"):
                (folder / f"rank-{rank}" / name).mkdir()
        for name in ("tmp", "home", "mpi"):
            (folder / name).mkdir()
        plan = {
            "script": script.name,
            "folder": str(folder),
            "np": np,
            "gpus": gpus,
            "phases": phases,
            "variables": variables or [[] for _ in phases],
            # Where there are two runs, the first one is on two hosts.
            "apart": len(phases) - 1,
            "steps": steps,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        before = [_files(folder / f"rank-{rank}") for rank in range(np)]
        python = nest.python if nest else [sys.executable]
        observer = [*python, "-m", "hvdlab.check.observe"]
        silence = _Silence(reference, given_up or threading.Event())
        try:
            stopped = _run(folder, limit, observer, np, silence)
        finally:
            silence.close()
        return _read(folder, before, stopped)


@contextlib.contextmanager
def warm(*modules: str) -> Iterator[Nest]:
    """A nest with these modules, see IMPORTS: more than half of a check is spent in imports.

    Raises RuntimeError if it could not be started.
    """
    with tempfile.TemporaryDirectory(prefix="hvdlab-warm-") as folder:
        for name in ("tmp", "home"):
            os.mkdir(os.path.join(folder, name))
        with Nest(modules, folder, environment(folder, "warm"), _confine(folder)) as nest:
            yield nest


def _confine(folder: str | Path) -> list[str]:
    """What runs another command within the limits of a check."""
    limits = [str(MEMORY_MB), str(FILE_MB)]
    return [sys.executable, "-m", "hvdlab.check.confine", str(folder), *limits]


def _write_data(folder: Path) -> None:
    """A slice of the real images that come with the package, the same on every machine."""
    folder.mkdir()
    for name, spec in SETS.items():
        sample = load_sample(spec)
        roles = ("train_images", "train_labels", "test_images", "test_labels")
        parts = {role: sample[role][: TRAIN if "train" in role else TEST] for role in roles}
        numpy.savez(folder / f"{name}.npz", **parts)


def copy_folder(script: Path, target: Path) -> None:
    """The script and the small files beside it, such as modules and options, also in folders."""
    target.mkdir(parents=True)
    shutil.copy(script, target / script.name)
    room = FOLDER_MB << 20
    for path in [p for depth in BESIDE for p in sorted(script.parent.glob(depth))[:MOST_BESIDE]]:
        name = path.relative_to(script.parent)
        if path.is_symlink() or not path.is_file() or (target / name).exists():
            continue
        hidden = any(part.startswith((".", "__pycache__")) for part in name.parts)
        if not hidden and path.stat().st_size < 1 << 20 and path.stat().st_size <= room:
            room -= path.stat().st_size
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / name)


def _files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {str(path.relative_to(folder)) for path in found}


def environment(folder: str | Path, token: str) -> dict[str, str]:
    """The variables of a check: none of the instructor's own."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    paths = [str(_ROOT), *kept.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
        "HOME": os.path.join(folder, "home"),
        "TMPDIR": os.path.join(folder, "tmp"),
        MARK: token,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(STALL_S),
        # A script may write nowhere else, and so not in /dev/shm.
        **dict.fromkeys(FOLDER_VARIABLES, os.path.join(folder, "mpi")),
    }


def _run(folder: Path, limit: float, observer: list[str], np: int, silence: _Silence) -> str:
    token = secrets.token_hex(16)
    launcher = [sys.executable, "-m", "hvdrun", "-np", str(np)]
    with open(folder / "launcher.txt", "wb") as output:
        job = subprocess.Popen(
            [*_confine(folder), *launcher, *observer, str(folder / "plan.json")],
            cwd=folder,
            env=environment(folder, token),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return _watch(job, folder, limit, token, np, silence)
        finally:
            _end(job, token)


class _Silence:
    """Tells a script in which nothing happens any more from one that is slow.

    How slow a machine is, a right script shows: it is run while the other one is silent, so that
    whatever else is at work there holds up both of them.
    """

    def __init__(self, reference: Callable[..., Recording] | None, given_up: threading.Event):
        self._reference, self.given_up = reference, given_up
        self._pool = ThreadPoolExecutor(1)
        self._over = threading.Event()
        self._took: Future[float] | None = None

    def close(self) -> None:
        """End the right script, if it is still running."""
        self._over.set()
        self._pool.shutdown()

    def is_long(self, since: float) -> str:
        """Whether nothing was seen since that time for too long, in words; empty if not."""
        seconds = time.time() - since
        if seconds < SILENCE_S / 2 or self._reference is None:
            if self._took is not None and self._took.done():
                self._took = None  # the machine may be slower the next time
            return ""
        if self._took is None:
            self._took = self._pool.submit(self._measure)
        if seconds < SILENCE_S or not self._took.done():
            return ""
        took = math.inf if self._took.exception() else self._took.result()
        if seconds < TIMES * took:
            return ""
        return f"nothing happened for {seconds:.0f} s; a right script takes {took:.0f} s in all"

    def _measure(self) -> float:
        start = time.monotonic()
        recording = self._reference(given_up=self._over)
        well = all(events and events[-1]["event"] == "finished" for events in recording.events)
        return time.monotonic() - start if well else math.inf


def _watch(
    job: subprocess.Popen, folder: Path, limit: float, token: str, np: int, silence: _Silence
) -> str:
    """Wait for the end of the job; which limit it hit, if any."""
    deadline, looks = time.monotonic() + limit, 0
    while job.poll() is None:
        time.sleep(0.1)
        looks += 1
        if time.monotonic() > deadline:
            _ask(folder, np)
            return f"it was still running after {limit:g} s"
        if silence.given_up.is_set():
            return "it was given up"
        for rank in range(np):
            for name in ("stdout", "stderr"):
                with contextlib.suppress(OSError):
                    if (folder / f"rank-{rank}" / name).stat().st_size > OUTPUT_MB << 20:
                        return f"rank {rank} printed more than {OUTPUT_MB} MB"
        if looks % 5 == 0:
            ranks = watchdog.processes(token, MARK)
            if len(ranks) > PROCESSES:
                return f"it started more than {PROCESSES} processes"
            for process in ranks:
                with contextlib.suppress(psutil.Error):
                    if process.memory_info().rss > MEMORY_MB << 20:
                        return f"a rank filled more than {MEMORY_MB} MB of memory"
            size, changed = _look(folder)
            if size > DISK_MB << 20:
                return f"it wrote more than {DISK_MB} MB"
            if long := silence.is_long(changed):
                _ask(folder, np)
                return long
            if all(_says(folder, rank, "finished") for rank in range(np)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(10)
                return ""
    return ""


def _look(folder: Path) -> tuple[int, float]:
    """The bytes on disk of all files, some of which may go while we count, and when the last of
    them was changed that is not MPI's: a record, an output, a file of the script's own."""
    total, changed = 0, folder.stat().st_mtime
    for top, _, names in os.walk(folder):
        of_mpi = Path(top).is_relative_to(folder / "mpi")
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(top, name))
                total += status.st_blocks * 512
                changed = changed if of_mpi else max(changed, status.st_mtime)
    return total, changed


def _ask(folder: Path, np: int) -> None:
    """Have each rank say where it is; one that is in a library's code may not."""
    (folder / ASKED).touch()
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end and not all(_says(folder, n, "here") for n in range(np)):
        time.sleep(0.1)


def _says(folder: Path, rank: int, event: str) -> bool:
    """Whether that is among the last events in the record of a rank."""
    with contextlib.suppress(OSError), open(folder / f"record-{rank}.jsonl", "rb") as record:
        record.seek(max(0, record.seek(0, os.SEEK_END) - 500))
        return f'{{"event": "{event}"'.encode() in record.read()
    return False


def _end(job: subprocess.Popen, token: str) -> None:
    """Kill all processes of the job; the launcher's guard then removes the files of MPI."""
    watchdog.end(token, MARK, politely=False)
    job.kill()
    job.wait()


def _read(folder: Path, before: list[set[str]], stopped: str) -> Recording:
    events, printed, logged, files = [], [], [], []
    for rank in range(len(before)):
        home = folder / f"rank-{rank}"
        events.append(_json_lines(folder / f"record-{rank}.jsonl"))
        printed.append(_lines(home / "stdout"))
        logged.append(_lines(home / "stderr"))
        files.append(sorted(_files(home) - before[rank] - {"stdout", "stderr"}))
    if not any(events):
        said = " / ".join(_lines(folder / "launcher.txt")[-5:])
        stopped = f"{stopped or 'it could not be started'}: {said}"
    home = folder / "rank-0"
    told = [name for name in files[0] if name.endswith(TEXTS) and not (home / name).is_symlink()]
    texts = {name: _lines(home / name, 100) for name in told[:MOST_TEXTS]}
    return Recording(events, printed, logged, files, stopped, texts=texts)


def _lines(path: Path, most: int = 400) -> list[str]:
    try:
        with open(path, "rb") as stream:
            text = stream.read(OUTPUT_MB << 20).decode(errors="replace")
    except OSError:
        return []
    lines = [line[:500] for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= most else [*lines[: most // 2], *lines[-most // 2 :]]


def _json_lines(path: Path) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
    return found
