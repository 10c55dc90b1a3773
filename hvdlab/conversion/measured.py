"""How fast the student's script is on one and on several processes, for the cells of the labs."""

from __future__ import annotations

from collections.abc import Sequence

from .. import style
from ..compare import Comparison, Run, compare, default_np
from ..compare import run as run_job
from ..compare.machine import cores, gpus
from .script import Script


def measure(
    script: Script, images: int, np: Sequence[int] | None = None, options: Sequence[str] = ()
) -> Comparison:
    """Compare one process with several, on so many images; shows the table.

    As long as not every step is written, the course's solution is measured in its place.
    Three epochs each, of which the first one warms up.

    Args:
        images: of an epoch on the CPU. GPUs get 20 times as many, so that there is something to
            time; not all of them, since a framework may be there in its build for the CPU.
        np: numbers of processes; by default 1 and the number of GPUs, with fewer than two 2.
        options: more options for the script.

    Raises:
        CompareError: a job failed; the text holds its output.
    """
    path = script.path if script.is_converted else script.solution
    if len(gpus()) >= max(np or default_np()) and "--no-cuda" not in options:
        images *= 20
    arguments = ["--limit", str(images), *options]
    result = compare(path, np, epochs=3, arguments=arguments, max_repeats=1)
    result.show()
    return result


def crowded(result: Comparison) -> Run:
    """The largest run once more, each of its processes with all cores of the machine.

    Raises:
        CompareError: the job failed; the text holds its output.
    """
    job = result.largest.job
    crowd = type(job)(job.script, job.np, cores(), job.epochs, job.arguments)
    return Run(crowd, [run_job(crowd)])


def speed_up(result: Comparison) -> float:
    """Images per second of the largest number of processes, as multiples of one process's."""
    return result.largest.rate.middle / result.baseline.rate.middle


def draw(result: Comparison) -> None:
    """The figure of a comparison: speed and accuracy of each run."""
    told = [
        f"{run.job.title}: {run.rate.text(0)} images/s, test accuracy {run.accuracy:.3f}"
        for run in result.runs
    ]
    words = f"Speed and accuracy of {len(told)} runs. " + "; ".join(told) + "."
    style.show(result.figure(), words)


def draw_speeds(title: str, runs: Sequence[Run]) -> None:
    """A bar for the speed of each run, with a line over its spread; the last one stands out."""
    fig, (axes,) = style.figure(width=7)
    for row, run in enumerate(runs):
        colour = style.COLOURS[5 if run is runs[-1] else 0]
        axes.barh(row, run.rate.middle, color=colour, height=0.6)
        axes.plot([run.rate.low, run.rate.high], [row, row], color=style.INK, linewidth=3)
    axes.set_yticks(range(len(runs)), [run.job.title for run in runs])
    axes.invert_yaxis()
    axes.grid(axis="x", color="#DDDDDD")
    axes.grid(axis="y", visible=False)
    style.label(axes, title, "images per second (black: lowest to highest epoch)", "")
    told = [f"{run.job.title}: {run.rate.text(0)} images/s" for run in runs]
    style.show(fig, "; ".join(told) + ".")
