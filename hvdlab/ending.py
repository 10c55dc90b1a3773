"""The end of a job that was started here, and of all that it has started itself."""

from __future__ import annotations

import contextlib
import signal
import subprocess

import psutil

_LAST = 3.0  # seconds for what a job leaves behind, such as a guard that removes files


def end(job: subprocess.Popen, how: signal.Signals = signal.SIGINT, patience: float = 8.0) -> None:
    """Ask a job to end, then kill what is left of it; nothing if it has ended.

    Args:
        how: what it is sent; after an interrupt horovodrun ends its ranks.
        patience: seconds until it is killed.
    """
    if job.poll() is not None:
        return
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end now, and another thread reap it
        started = psutil.Process(job.pid).children(recursive=True)
    job.send_signal(how)
    try:
        job.wait(patience)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
    _, left = psutil.wait_procs(started, timeout=_LAST)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_LAST)
