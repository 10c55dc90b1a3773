"""A short trial before a comparison: whether the script runs, and how long the runs will take."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .job import Job, run
from .machine import cores

IMAGES = 512  # enough for a first guess within seconds


@dataclass(frozen=True)
class Estimate:
    """Seconds that a run takes: until its first step, and for an epoch of one process."""

    start: float
    epoch: float

    def of_epoch(self, job: Job) -> float:
        """Seconds of an epoch; processes on cores of their own share the work."""
        return self.epoch / min(job.np, cores())

    def of_run(self, job: Job) -> float:
        """Seconds from the job's command to its end."""
        return self.start + job.epochs * self.of_epoch(job)


def try_out(job: Job, images: int | None) -> Estimate | None:
    """Train on a few images, as `job` would on `images`; None where nothing can be learnt of it.

    Raises:
        CompareError: the job failed; so it does within seconds.
    """
    if images is None or "--limit" not in Path(job.script).read_text(errors="replace"):
        return None
    options = tuple(one for one in job.arguments if not one.startswith("--limit="))
    start = time.monotonic()
    *_, last = run(replace(job, epochs=1, arguments=(*options, f"--limit={IMAGES}")), "a trial")
    wall, training = time.monotonic() - start, float(last["seconds"])  # type: ignore[arg-type]
    # The script tests on as many images as it trains on, which takes a third of the time.
    return Estimate(wall - training, training * images / IMAGES * 4 / 3)


def announce(jobs: list[Job], rounds: int, images: int | None, estimate: Estimate | None) -> None:
    """Say on stderr what will run, and how long that takes."""
    titles = [job.title for job in jobs]
    if cores() > jobs[0].threads:
        jobs = [*jobs, replace(jobs[0], threads=cores())]
        titles.insert(1, jobs[-1].title)
    how = f"{jobs[0].epochs} epochs each" + (f", {rounds} times in turn" if rounds > 1 else "")
    part = f" of {images:,} images" if images else ""
    line = f"Comparing {', '.join(titles)}: {how.replace('epochs', 'epochs' + part)}"
    if estimate:
        minutes = rounds * sum(map(estimate.of_run, jobs)) / 60
        line += f"; about {minutes:.0f} minutes" if minutes >= 1.5 else "; about a minute"
    print(f"{line}.", file=sys.stderr, flush=True)
