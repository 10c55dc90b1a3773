"""One thing done for many, some at a time, with a bar that tells the time left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from .progress import bar

MOST = 8  # at a time: each may fill some GB of memory
Item = TypeVar("Item")
Result = TypeVar("Result")


def several(
    do: Callable[[Item], Result], items: Sequence[Item], title: str, unit: str
) -> Iterator[tuple[Item, Result]]:
    """What `do` gives for each item, as soon as it is known; as many at a time as there are cores.

    Where it is left early, by an interrupt, nothing new begins, and what runs is the caller's to
    end. `title` and `unit` are the bar's.
    """
    pool = ThreadPoolExecutor(max(1, min(len(items), len(os.sched_getaffinity(0)), MOST)))
    try:
        with bar(len(items), title, unit) as progress:
            jobs = {pool.submit(do, item): item for item in items}
            for job in as_completed(jobs):
                progress.update()
                yield jobs[job], job.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
