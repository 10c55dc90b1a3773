"""Draw a timeline: a Vega-Lite chart, and the same as a PNG."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Patch

from .. import style
from .read import Timeline

_NEGOTIATE, _WHOLE = "#DDDDDD", "#B9D6EA"
# Words in the names of parts, the first that fits, and their places in the palette.
# fmt: off
_PARTS = (
    ("MEMCPY_IN", 1), ("MEMCPY_OUT", 3), ("ADASUM", 5), ("SHM_", 0), ("RING_", 2), ("NCCL_", 2),
    ("MPI_", 4), ("", 6),
)
# fmt: on


def colours(timeline: Timeline) -> dict[str, str]:
    """A colour for each phase, the same in every picture: grey waits, pale blue the whole, and
    the palette for its parts, by the kind of their work."""
    found: dict[str, str] = {}
    for span in timeline.spans:
        if span.depth:
            place = next(place for word, place in _PARTS if word in span.phase)
            found[span.phase] = style.COLOURS[place]
        else:
            found[span.phase] = _NEGOTIATE if span.phase.startswith("NEGOTIATE") else _WHOLE
    return found


def alt_text(timeline: Timeline) -> str:
    """What the picture shows, in two sentences."""
    tensors = len({span.tensor for span in timeline.spans})
    longest = max(timeline.phases(), key=lambda phase: phase.seconds)
    return (
        f"Timeline of {tensors} tensors from {timeline.first:.3f} to {timeline.last:.3f} s, one "
        f"lane each, with bars for their phases and a tick where each rank asked. The longest "
        f"phase is {longest.name} with {1e3 * longest.seconds:.1f} ms."
    )


def bundle(timeline: Timeline, title: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The output for a notebook: Vega-Lite, PNG and text, with metadata."""
    alt = alt_text(timeline)
    png, metadata = style.as_png(picture(timeline, title), alt, dpi=120)
    data = {
        "application/vnd.vegalite.v5+json": chart(timeline, title, alt),
        "image/png": png,
        "text/plain": f"Figure: {alt}",
    }
    return data, metadata


def chart(timeline: Timeline, title: str, alt: str) -> dict[str, Any]:
    """The Vega-Lite specification: drag to move, turn the wheel to zoom, point to read."""
    found = colours(timeline)
    order = list(dict.fromkeys(span.tensor for span in timeline.spans))
    values = [
        {
            "tensor": span.tensor,
            "phase": span.phase,
            "start": round(1e3 * span.start, 4),
            "end": round(1e3 * span.end, 4),
            "time": f"{1e3 * (span.end - span.start):,.3f} ms",
            "depth": span.depth,
        }
        for span in timeline.spans
    ]
    ticks = [
        {"tensor": one.tensor, "rank": str(one.rank), "start": round(1e3 * one.when, 4)}
        for one in timeline.arrivals
    ]
    y = {"field": "tensor", "type": "nominal", "sort": order, "title": None}
    x = {"field": "start", "type": "quantitative", "title": "time (ms)", "scale": {"zero": False}}
    phase = {
        "field": "phase",
        "type": "nominal",
        "scale": {"domain": list(found), "range": list(found.values())},
        "legend": {"title": None, "orient": "top", "columns": 3, "labelLimit": 300},
    }
    tip = [{"field": name, "type": "nominal"} for name in ("tensor", "phase", "time")]

    def bars(test: str, band: float, legend: bool) -> dict[str, Any]:
        colour = phase if legend else {**phase, "legend": None}
        return {
            "data": {"name": "spans"},
            "transform": [{"filter": test}],
            "mark": {"type": "bar", "height": {"band": band}, "clip": True},
            "encoding": {"x": x, "x2": {"field": "end"}, "y": y, "color": colour, "tooltip": tip},
        }

    whole = bars("datum.depth == 0", 0.85, legend=True)
    whole["params"] = [
        {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
    ]
    parts = bars("datum.depth > 0", 0.45, legend=False)
    arrivals = {
        "data": {"name": "ticks"},
        "mark": {"type": "tick", "clip": True, "thickness": 2},
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "rank",
                "type": "nominal",
                "scale": {"range": [style.COLOURS[5], style.COLOURS[6], *style.COLOURS[3:5]]},
                "legend": {"title": "came: rank", "orient": "right"},
            },
            "tooltip": [{"field": name, "type": "nominal"} for name in ("tensor", "rank", "start")],
        },
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "description": alt,
        "width": 640,
        "height": {"step": 18},
        "datasets": {"spans": values, "ticks": ticks},
        "layer": [whole, parts, *([arrivals] if ticks else [])],
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "config": {"view": {"stroke": None}},
    }


def picture(timeline: Timeline, title: str) -> Any:
    """The same as a figure of matplotlib."""
    found = colours(timeline)
    lanes = {name: row for row, name in enumerate(dict.fromkeys(s.tensor for s in timeline.spans))}
    shown = dict(list(lanes.items())[:40])
    fig, (axes,) = style.figure(width=8.4, height=1.9 + 0.2 * len(shown))
    for span in timeline.spans:
        if span.tensor in shown:
            height = 0.42 if span.depth else 0.84
            left, width = 1e3 * span.start, max(1e3 * (span.end - span.start), 1e-3)
            row = shown[span.tensor]
            axes.barh(row, width, height, left, color=found[span.phase], zorder=2 + span.depth)
    ranks = sorted({one.rank for one in timeline.arrivals})
    for number, rank in enumerate(ranks):
        came = [a for a in timeline.arrivals if a.rank == rank and a.tensor in shown]
        axes.scatter(
            [1e3 * one.when for one in came],
            [shown[one.tensor] + 0.25 * (number - (len(ranks) - 1) / 2) for one in came],
            s=9,
            color=[style.COLOURS[5], style.COLOURS[6], *style.COLOURS[3:5]][number % 4],
            label=f"rank {rank} came",
            zorder=5,
        )
    marks, _ = axes.get_legend_handles_labels()
    marks = [*(Patch(color=colour, label=name) for name, colour in found.items()), *marks]
    axes.set_xlim(1e3 * timeline.first, 1e3 * timeline.last)
    axes.set_yticks(list(shown.values()), [name[-36:] for name in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(visible=False)
    part = f" (the first {len(shown)} of {len(lanes)})" if len(shown) < len(lanes) else ""
    style.label(axes, title + part, "time (ms)", "")
    fig.legend(handles=marks, loc="outside upper center", ncols=3, fontsize=7, frameon=False)
    return fig
