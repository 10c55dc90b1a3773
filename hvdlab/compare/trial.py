"""A short trial before a comparison: whether the script runs, and how long the runs will take."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

from . import cache
from .job import Job, run
from .machine import cores

IMAGES = 512  # enough for a first guess within seconds
FEWEST, MOST = 500, 60_000  # images of an epoch


@dataclass(frozen=True)
class Estimate:
    """Seconds that a run takes: until its first step, and for each image on one process."""

    start: float
    image: float

    def of_epoch(self, job: Job, images: int) -> float:
        """Seconds of an epoch; processes on cores of their own share the work."""
        return self.image * images / min(job.np, cores())

    def of_run(self, job: Job, images: int) -> float:
        """Seconds from the job's command to its end."""
        return self.start + job.epochs * self.of_epoch(job, images)


def try_out(job: Job, again: bool) -> Estimate:
    """Train on a few images, as `job` would on all of them; not again where that was done before.

    Raises:
        CompareError: the job failed; so it does within seconds.
    """
    trial = replace(job, epochs=1, arguments=(*job.arguments, f"--limit={IMAGES}"))
    name = cache.key(trial, 0)
    if not again and (kept := cache.load(name)):
        return Estimate(*kept[0]["estimate"])
    start = time.monotonic()
    *_, last = run(trial, "a trial")
    wall, training = time.monotonic() - start, last["seconds"]
    # The script tests on as many images as it trains on, which takes a third of the time.
    estimate = Estimate(wall - training, training / IMAGES * 4 / 3)
    cache.store(name, [{**last, "estimate": [estimate.start, estimate.image]}])
    return estimate


def images_for(estimate: Estimate, jobs: list[Job], seconds: float) -> int:
    """How many images an epoch may have so that the jobs take so long, one after the other."""
    left = seconds - len(jobs) * estimate.start
    passes = sum(job.epochs / min(job.np, cores()) for job in jobs)
    images = int(left / passes / estimate.image)
    return min(MOST, max(FEWEST, images - images % FEWEST))


def announce(jobs: list[Job], rounds: int, images: int | None, estimate: Estimate | None) -> None:
    """Say on stderr what will run, and how long that takes."""
    titles = ", ".join(job.title for job in jobs)
    part = f" of {images:,} images" if images else ""
    how = f"{jobs[0].epochs} epochs{part} each" + (
        f", {rounds} times in turn" if rounds > 1 else ""
    )
    line = f"Comparing {titles}: {how}"
    if estimate and images:
        minutes = rounds * sum(estimate.of_run(job, images) for job in jobs) / 60
        line += f"; about {minutes:.0f} minutes" if minutes >= 1.5 else "; about a minute"
    print(f"{line}.", file=sys.stderr, flush=True)
