"""What this machine has, as far as a comparison depends on it."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def _installed_gpus() -> list[str]:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs that this process may use; empty without any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _installed_gpus()
    # CUDA takes what stands before the first entry that is no GPU; -1 is how many write "none".
    named = itertools.takewhile(lambda one: re.match(r"\s*\w", one), visible.split(","))
    return _installed_gpus()[: len(list(named))]


def on_the_cpu() -> None:
    """Hide the GPUs from all programs that this process starts from now on."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


@contextlib.contextmanager
def gpus_for(processes: int) -> Iterator[int]:
    """Within, GPUs are hidden if there are fewer than processes; gives the number of those hidden.

    Each process wants a GPU of its own.
    """
    found, before = len(gpus()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if found == 0 or found >= processes:
        yield 0
        return
    on_the_cpu()
    try:
        yield found
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def cpu_name() -> str:
    """The processor's name as Linux tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a training run rests on."""
    found = {"python": platform.python_version()}
    for package in ("hvdlite", "torch", "tensorflow", "tensorflow_cpu", "keras", "mpi4py", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def runtime_sources() -> list[Path]:
    """The Python files of hvdlite and of hvdlab, which a run depends on too."""
    files: list[Path] = []
    for package in ("hvdlite", "horovod", "hvdlab"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            files += sorted(Path(folder).rglob("*.py"))
    # How results are compared and drawn changes no run.
    return [file for file in files if "compare" not in file.parts]


def describe() -> dict[str, object]:
    """The machine in short: host, processor, cores, GPUs."""
    return {"host": platform.node(), "cpu": cpu_name(), "cores": cores(), "gpus": gpus()}


class OtherLoad:
    """How much of the machine other programs take, from its making to share()."""

    def __init__(self) -> None:
        self._start = self._now()

    def share(self) -> float:
        """The share of all processors that went to others, 0 to 1.

        Own jobs count as own once they have ended.
        """
        elapsed, busy, own = (
            end - start for end, start in zip(self._now(), self._start, strict=True)
        )
        return max(0.0, busy - own) / (elapsed * (psutil.cpu_count() or 1))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        system = psutil.cpu_times()
        ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in ours)
        return time.monotonic(), system.user + system.nice + system.system, own
