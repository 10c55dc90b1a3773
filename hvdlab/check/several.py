"""Checks of many scripts, some at a time, in warm interpreters."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from ..warm import Nest
from . import check
from .course import CheckError, script_of
from .run import IMPORTS, warm
from .verdict import Verdict

MOST = 8  # at a time: each may fill some GB of memory


def several(
    lab: str, scripts: Sequence[Path], limit: float
) -> Iterator[tuple[Path, Verdict | CheckError]]:
    """The verdict on each script, or why there is none, as soon as it is known.

    As many run at a time as there are cores: those that hang use none. Each has a warm process
    for itself, so that none can touch what belongs to another one.
    """
    at_a_time = max(1, min(len(scripts), len(os.sched_getaffinity(0)), MOST))
    with ExitStack() as stack:
        free: queue.SimpleQueue[dict[tuple[str, ...], Nest]] = queue.SimpleQueue()
        for _ in range(at_a_time):
            free.put({})

        def one(path: Path) -> Verdict | CheckError:
            nests = free.get()
            try:
                modules = IMPORTS[script_of(lab, path).framework]
                if modules not in nests or not nests[modules].is_up:
                    nests[modules] = stack.enter_context(warm(*modules))
                return check(lab, path, limit, nests[modules])
            except CheckError as error:
                return error
            finally:
                free.put(nests)

        pool = ThreadPoolExecutor(at_a_time)
        try:
            jobs = {pool.submit(one, path): path for path in scripts}
            for job in as_completed(jobs):
                yield jobs[job], job.result()
        finally:  # an interrupt: the warm processes end, and with them the checks
            pool.shutdown(wait=False, cancel_futures=True)
            stack.close()
