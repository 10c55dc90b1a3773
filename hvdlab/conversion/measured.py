"""What `hvdlab.compare` measured, in words and as one number, for the cells of the labs."""

from __future__ import annotations

from ..compare import Comparison


def speed_up(result: Comparison) -> float:
    """Images per second of the largest number of processes, as multiples of one process's."""
    largest = max((run for run in result.runs if not run.reference), key=lambda run: run.job.np)
    return largest.rate.middle / result.baseline.rate.middle


def in_words(result: Comparison) -> str:
    """The figure of a comparison for those who can't see it."""
    told = [
        f"{run.job.title}: {run.rate.text(0)} images/s, test accuracy {run.accuracy:.3f}"
        for run in result.runs
    ]
    return f"Speed and accuracy of {len(told)} runs. " + "; ".join(told) + "."
