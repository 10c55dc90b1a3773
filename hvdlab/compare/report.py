"""A comparison as a table, as text, as a figure and as JSON."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from .analysis import Run, conclusion, speedup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from . import Comparison


def table(comparison: Comparison) -> Table:
    """Every epoch of every run, and a line that sums each run up."""
    view = Table(
        title=f"{comparison.script.name}: 1 process against several",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    view.add_column("run", no_wrap=True)
    for name in ("time", "images/s", "speed-up", "efficiency", "accuracy"):
        view.add_column(name, justify="right", no_wrap=True)
    for run in comparison.runs:
        view.add_row(run.job.title, style="bold")
        for epochs in run.repeats:
            for epoch in epochs:
                view.add_row(
                    f"  epoch {epoch['epoch']}{' (warm-up)' if epoch['is_warmup'] else ''}",
                    _seconds(epoch["seconds"]),
                    f"{epoch['images_per_second']:,.0f}",
                    "",
                    "",
                    f"{100 * epoch['accuracy']:.2f} %",
                    style="dim" if epoch["is_warmup"] else None,
                )
        _sum_up(view, run, comparison)
    return view


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 1 else f"{time:.2g} s"


def _sum_up(view: Table, run: Run, comparison: Comparison) -> None:
    ratio = speedup(run, comparison.baseline)
    seconds = [epoch["seconds"] for epoch in run.steady]
    view.add_row(
        "  steady",
        _seconds(statistics.median(seconds)) if seconds else "",
        run.rate.short(0),
        "1" if run is comparison.baseline else ratio.short(),
        f"{100 * ratio.middle / run.job.np:.0f} %" if not run.reference else "",
        f"{100 * run.accuracy:.2f} %",
        style="bold",
        end_section=True,
    )


def notes(comparison: Comparison) -> list[str]:
    """What one must know to read the table, and what it allows to be said."""
    base = comparison.baseline
    lines = []
    if any(run.last.get("is_sample") for run in comparison.runs):
        lines.append("ONLY A SAMPLE of the data was there: these figures mean nothing.")
    if comparison.images:
        lines.append(
            f"Each epoch had {comparison.images:,} images, so the accuracy is that of a short "
            "training. Whole epochs: `make lab FULL=1`, or `hvdlab compare` without --minutes."
        )
    if comparison.hidden_gpus:
        there = (
            "is one GPU" if comparison.hidden_gpus == 1 else f"are {comparison.hidden_gpus} GPUs"
        )
        lines.append(
            f"There {there}, and each of {comparison.np[-1]} processes wants one of its own, so "
            "all runs were on the CPU."
        )
    lines.append(
        f"The baseline is the same script with {base.job.title}: as many as each process has "
        "when there are several. Speed-up and efficiency are against it. Time and images/s are "
        "of training alone, without start-up and validation. The first epoch of each run warms "
        "up and is left out. Behind ± and in brackets: the spread of the epochs, from lowest to "
        "highest, or the middle half of them from four on."
    )
    for run in comparison.runs:
        if run is not base:
            lines.append(conclusion(run, base))
    for reference in comparison.references:
        for run in comparison.runs:
            if run.job.np > 1:
                lines.append(conclusion(run, reference))
    lines += [_batch(run) for run in comparison.runs if not run.reference]
    return lines


def _batch(run: Run) -> str:
    last = run.last
    total = int(last["batch_size"]) * run.job.np
    steps = -(-int(last["images"]) // total)
    return (
        f"{run.job.title}: {last['batch_size']} images a step and process, so a total batch of "
        f"{total} and {steps} steps an epoch; learning rate {last['learning_rate']:g} "
        f"before its decay; {last['device']}; test accuracy {100 * run.accuracy:.2f} %."
    )


def figure(comparison: Comparison) -> Figure:
    """Images per second of each run with its spread, and the accuracy over the epochs."""
    from ..style import COLOURS, INK, label
    from ..style import figure as new_figure

    fig, (left, right) = new_figure(columns=2)
    base = comparison.baseline.rate.middle
    for place, run in enumerate(comparison.runs):
        rate = run.rate
        spread = [[rate.middle - rate.low], [rate.high - rate.middle]]
        left.bar(place, rate.middle, color=COLOURS[place % len(COLOURS)], label=run.job.title)
        left.errorbar(place, rate.middle, yerr=spread, color=INK, capsize=4)
        if run.job.np > 1:
            ideal = "ideal: baseline times processes" if run.job.np == comparison.np[-1] else None
            left.hlines(
                base * run.job.np, place - 0.4, place + 0.4, INK, linestyles="dashed", label=ideal
            )
        epochs = run.repeats[-1]
        right.plot(
            [epoch["epoch"] for epoch in epochs],
            [100 * epoch["accuracy"] for epoch in epochs],
            marker="o",
            color=COLOURS[place % len(COLOURS)],
            label=run.job.title,
        )
    left.set_xticks(
        range(len(comparison.runs)),
        [f"{run.job.np} x {run.job.threads}" for run in comparison.runs],
    )
    left.set_ylim(0, 1.45 * max(base * max(comparison.np), *(r.rate.high for r in comparison.runs)))
    right.xaxis.get_major_locator().set_params(integer=True)
    label(left, "Training speed and its spread", "processes x threads", "images per second")
    label(right, "Accuracy on the test images", "epoch", "test accuracy (%)")
    left.legend(fontsize=8, loc="upper left")
    right.legend(fontsize=8, loc="lower right")
    return fig


def as_json(comparison: Comparison) -> dict[str, object]:
    """Everything measured, for later labs and for other programs."""
    return {
        "script": str(comparison.script),
        "machine": comparison.machine,
        "versions": comparison.packages,
        "images": comparison.images,
        "runs": [
            {
                "title": run.job.title,
                "processes": run.job.np,
                "threads": run.job.threads,
                "arguments": list(run.job.arguments),
                "is_baseline": run is comparison.baseline,
                "is_reference": run.reference,
                "images_per_second": vars(run.rate),
                "speedup": vars(speedup(run, comparison.baseline)),
                "efficiency": speedup(run, comparison.baseline).middle / run.job.np,
                "accuracy": run.accuracy,
                "repeats": run.repeats,
            }
            for run in comparison.runs
        ],
        "notes": notes(comparison),
    }
