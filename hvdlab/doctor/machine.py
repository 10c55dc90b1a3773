"""Questions about the machine itself. One function, one question."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

import psutil

from .asking import OK, PROBLEM, Finding

GIB = 1 << 30


def memory(group: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Memory that is free, also within the limit of a container's control group."""
    free = psutil.virtual_memory().available
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
        cache = int(dict(line.split() for line in lines)["inactive_file"])  # given back if needed
        free = min(free, limit - used + cache)
    except (OSError, ValueError, KeyError):  # "max": there is no limit
        pass
    detail = f"{free / GIB:.1f} GiB free"
    if free < 2 * GIB:
        return Finding("Memory", PROBLEM, detail, "close other notebooks (Kernel > Shut Down All)")
    return Finding("Memory", OK, detail)


def shared_memory() -> Finding:
    """/dev/shm, which Open MPI and PyTorch's data loaders use; hvdlite does not."""
    try:
        usage = shutil.disk_usage("/dev/shm")
        writable = os.access("/dev/shm", os.W_OK)
    except OSError as error:
        return Finding("/dev/shm", PROBLEM, str(error), "give the container one: --shm-size=1g")
    detail = f"{usage.free / GIB:.2f} GiB free"
    if not writable or usage.free < 16 << 20:
        return Finding(
            "/dev/shm",
            PROBLEM,
            detail if writable else "can't be written",
            "remove old files there, or give the container more: --shm-size=1g",
        )
    return Finding("/dev/shm", OK, detail)


def disk() -> Finding:
    """Room for checkpoints, in this folder and in the temporary one."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        if free < GIB or not os.access(folder, os.W_OK):
            detail = f"{folder}: {free / GIB:.1f} GiB free, or it can't be written"
            return Finding("Disk", PROBLEM, detail, "make room, or work in another folder")
    return Finding("Disk", OK, f"{shutil.disk_usage(Path.cwd()).free / GIB:.0f} GiB free here")


def cores() -> Finding:
    """Cores of this process, and what limits the threads."""
    mine = len(os.sched_getaffinity(0))
    told = [f"{mine} of {os.cpu_count()} cores"]
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            mine = min(mine, max(1, int(quota) // int(period)))
            told.append(f"a quota of {int(quota) / int(period):g}")
    except (OSError, ValueError):
        pass
    threads = os.environ.get("OMP_NUM_THREADS")
    told.append(f"OMP_NUM_THREADS={threads}" if threads else "OMP_NUM_THREADS not set")
    detail = ", ".join(told)
    if threads and (not threads.isdigit() or int(threads) > mine):
        return Finding(
            "Cores",
            PROBLEM,
            detail,
            "unset OMP_NUM_THREADS: more threads than cores make all ranks slow",
        )
    if mine < 2:
        fix = "ask for 2 cores (a larger JupyterHub profile, or --cpus-per-task=2)"
        return Finding("Cores", PROBLEM, detail, fix)
    return Finding("Cores", OK, detail)


def ports() -> Finding:
    """Whether a port of the loopback address can be had, which Jupyter and MPI need."""
    try:
        with socket.socket() as first, socket.socket() as second:
            for one in (first, second):
                one.bind(("127.0.0.1", 0))
                one.listen(1)
            with socket.create_connection(first.getsockname(), timeout=5):
                pass
    except OSError as error:
        return Finding(
            "Ports",
            PROBLEM,
            f"127.0.0.1: {error}",
            "a firewall or a container without a loopback device; ask who runs it",
        )
    return Finding("Ports", OK, "ports of 127.0.0.1 can be opened and reached")
