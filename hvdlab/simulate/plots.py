"""The simulator's pictures, in the course's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import COLOURS, INK, figure, label
from .fit import Fit
from .published import PUBLISHED, reproduce
from .step import Step


def costs(curves: Mapping[str, Sequence[float]], workers: Sequence[int], title: str) -> Figure:
    """Allreduce times (seconds) over the number of workers, one curve for each name."""
    fig, (axes,) = figure(width=6.4)
    for name, seconds in curves.items():
        axes.loglog(workers, [1e3 * one for one in seconds], label=name)
    label(axes, title, "workers", "time of one allreduce (ms)")
    _plain(axes)
    return fig


def efficiency(curves: Mapping[str, Sequence[Step]], title: str) -> Figure:
    """Scaling efficiency (%) over the number of workers, one curve for each name."""
    fig, (axes,) = figure(width=6.4)
    for name, steps in curves.items():
        axes.semilogx([s.workers for s in steps], [100 * s.efficiency for s in steps], label=name)
    label(axes, title, "workers", "efficiency (% of the ideal)")
    _plain(axes)
    axes.set_ylim(0, 105)
    return fig


def published() -> Figure:
    """The published efficiencies beside what reproduce() makes of the same runs."""
    fig, (axes,) = figure(width=6.4)
    for number, network in enumerate(dict.fromkeys(one.network for one in PUBLISHED)):
        known = [one for one in PUBLISHED if one.network is network]
        counts = [one.workers * 1.08**number for one in known]  # beside each other
        told = [100 * one.efficiency for one in known]
        simulated = [100 * reproduce(one).efficiency for one in known]
        name, colour = network.name, COLOURS[number]
        axes.semilogx(counts, told, "o", color=colour, label=f"{name}, published", base=2)
        axes.plot(counts, simulated, "_", color=colour, ms=16, mew=2, label=f"{name}, simulated")
    label(axes, "Horovod on P100 GPUs, 25 Gbit/s", "GPUs", "efficiency (% of the ideal)")
    axes.set_ylim(0, 105)
    axes.set_xticks([16, 128, 512], ["16", "128", "512"])
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return fig


def fitted(fit: Fit, workers: Sequence[int], seconds: Sequence[float], up_to: int) -> Figure:
    """Measured times, the fitted curve with its 95 % range, and the ideal G / W."""
    fig, (axes,) = figure(width=6.4)
    counts = sorted({*workers, *(2**power for power in range(up_to.bit_length()))})
    counts = [count for count in counts if count <= up_to]
    middle, margin = fit.predict(counts), fit.margin(counts)
    axes.loglog(counts, middle, color=COLOURS[0], label="fit: G / W + C(W)")
    if fit.freedom:
        low = [max(m - d, 1e-3 * m) for m, d in zip(middle, margin, strict=True)]
        axes.fill_between(counts, low, middle + margin, color=COLOURS[0], alpha=0.2, linewidth=0)
    ideal = [fit.values[0] / count for count in counts]
    axes.loglog(counts, ideal, "--", color=INK, label="ideal: G / W")
    axes.plot(workers, seconds, "o", color=COLOURS[1], label="measured")
    axes.set_ylim(bottom=0.3 * min(*ideal, *middle))
    label(axes, "The fit, carried on", "workers", "time (s)")
    _plain(axes)
    return fig


def timeline(step: Step, title: str = "", until: float | None = None) -> Figure:
    """One step: the compute units above, the network below, so that the overlap can be seen.

    `until` (seconds) is where the time axis ends, for pictures that stand below each other.
    """
    fig, (axes,) = figure(width=8.0, height=2.6)
    lanes = (("network", step.communication, COLOURS[1]), ("compute", step.compute, COLOURS[0]))
    for height, (_, spans, colour) in enumerate(lanes):
        bars = [(1e3 * span.start, 1e3 * (span.end - span.start)) for span in spans]
        axes.broken_barh(bars, (height - 0.35, 0.7), color=colour, edgecolor="white", linewidth=0.5)
    axes.axvline(1e3 * step.compute[-1].end, color=INK, linestyle="--", linewidth=1)
    label(axes, title or "Right of the dashed line the GPUs wait", "time (ms)", "")
    axes.set_xlim(0, 1e3 * 1.02 * (until or step.seconds))
    axes.set_yticks([0, 1], [name for name, _, _ in lanes])
    axes.grid(visible=False)
    return fig


def _plain(axes: Axes) -> None:
    """Numbers in the place of powers of ten, and the legend."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.8g}")
    axes.legend(frameon=False)
