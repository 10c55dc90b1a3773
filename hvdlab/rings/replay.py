"""The replay: a picture of each step, and a player for them that needs nothing but the page."""

from __future__ import annotations

import base64
import html
import math
import os
from typing import TYPE_CHECKING

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from .. import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .record import Counts, Message, Recording

_CELL = 0.22  # width of a chunk's box; the ranks stand on a circle of radius 1
_HIGH = 0.32
_EMPTY = "#F2F2F2"
_WRONG = "#B0413E"


def show(recording: Recording, title: str = "Your allreduce, replayed") -> None:
    """Show the steps one by one, with a slider and buttons, in a notebook.

    The page holds all it needs, so it also works in a saved notebook and without a network.
    """
    from IPython.display import HTML, display

    frames = []
    for step in range(recording.steps + 1):
        data, _ = style.as_png(_frame(recording, step, title), "", dpi=110)
        frames.append((base64.b64encode(data).decode(), describe(recording, step)))
    display(HTML(_player(frames)), metadata={"text/html": {"isolated": False}})


def storyboard(recording: Recording, title: str = "All steps at a glance") -> None:
    """Show all steps in one picture, which is there also where pages may not run scripts."""
    panels = recording.steps + 1
    columns = min(4, panels)
    rows = math.ceil(panels / columns)
    fig, _ = style.figure(columns=1, width=2.7 * columns, height=2.75 * rows + 0.4)
    fig.clear()
    for step in range(panels):
        axes = fig.add_subplot(rows, columns, step + 1)
        _draw_ranks(axes, recording, step)
        axes.set_title(_name(recording, step), fontsize=9, color=style.INK)
    fig.suptitle(title, fontsize=11, color=style.INK)
    told = " ".join(describe(recording, step) for step in range(panels))
    style.show(fig, f"{title}. {told}")


def describe(recording: Recording, step: int) -> str:
    """One step in words: what is sent, or how it ends."""
    if step == recording.steps:
        done = sum(recording.right)
        return f"End: {done} of {recording.size} ranks have the sum of all."
    told = []
    for message in _of(recording, step):
        chunks = ", ".join(map(str, sorted(message.content))) or "?"
        many = "chunk" if len(message.content) == 1 else "chunks"
        told.append(f"rank {message.source} sends {many} {chunks} to rank {message.target}")
    return f"Step {step + 1}: {'; '.join(told)}."


def _name(recording: Recording, step: int) -> str:
    return "the end" if step == recording.steps else f"step {step + 1} of {recording.steps}"


def _of(recording: Recording, step: int) -> list[Message]:
    return [message for message in recording.messages if message.step == step]


def _frame(recording: Recording, step: int, title: str) -> Figure:
    fig, (left, right) = style.figure(columns=2, width=4.6, height=4.4)
    _draw_ranks(left, recording, step)
    left.set_title(f"{title}: {_name(recording, step)}", fontsize=11, color=style.INK)
    _draw_bytes(right, recording, step)
    return fig


def _draw_ranks(axes: Axes, recording: Recording, step: int) -> None:
    """The ranks in a circle with their chunks, and an arrow for each message of this step."""
    size = recording.size
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-1.75, 1.75)
    axes.set_ylim(-1.55, 1.55)
    for message in _of(recording, step):
        _draw_message(axes, message, size)
    for rank in range(size):
        x, y = _place(rank, size)
        left = x - size * _CELL / 2
        axes.add_patch(
            FancyBboxPatch(
                (left - 0.05, y - _HIGH / 2 - 0.05),
                size * _CELL + 0.1,
                _HIGH + 0.1,
                boxstyle="round,pad=0.02",
                facecolor="white",
                edgecolor="none",
                zorder=3,
            )  # fmt: skip
        )
        for chunk, counts in enumerate(recording.states[step][rank]):
            _draw_chunk(axes, left + chunk * _CELL, y - _HIGH / 2, counts)
        above = y >= -1e-9
        axes.text(x, y + (_HIGH / 2 + 0.06) * (1 if above else -1), f"rank {rank}", ha="center",
                  va="bottom" if above else "top", fontsize=9, fontweight="bold", zorder=6,
                  color=style.COLOURS[rank % len(style.COLOURS)])  # fmt: skip


def _place(rank: int, size: int) -> tuple[float, float]:
    angle = math.pi / 2 - 2 * math.pi * rank / size
    return 1.2 * math.cos(angle), 1.1 * math.sin(angle)


def _draw_chunk(axes: Axes, x: float, y: float, counts: Counts) -> None:
    """A box with a stripe for each rank whose numbers are in; a full box is the sum of all."""
    size = len(counts)
    axes.add_patch(Rectangle((x, y), _CELL, _HIGH, facecolor=_EMPTY, edgecolor="none", zorder=4))
    for rank, times in enumerate(counts):
        if times:
            low = y + _HIGH * (1 - (rank + 1) / size)
            colour = style.COLOURS[rank % len(style.COLOURS)]
            axes.add_patch(Rectangle((x, low), _CELL, _HIGH / size, facecolor=colour, zorder=4))
            if times > 1:
                axes.text(x + _CELL / 2, low + _HIGH / size / 2, f"{times}x", fontsize=5,
                          ha="center", va="center", color="white", zorder=6)  # fmt: skip
    edge = _WRONG if max(counts) > 1 else style.INK
    complete = all(times == 1 for times in counts)
    axes.add_patch(Rectangle((x, y), _CELL, _HIGH, fill=False, edgecolor=edge, zorder=5,
                             linewidth=1.8 if complete or max(counts) > 1 else 0.6))  # fmt: skip


def _draw_message(axes: Axes, message: Message, size: int) -> None:
    """An arrow beside the straight line between two ranks, and the load in its middle."""
    start, end = _place(message.source, size), _place(message.target, size)
    along = (end[0] - start[0], end[1] - start[1])
    length = math.hypot(*along) or 1
    aside = 0.1 if length < 2 else 0.2  # to its left, so that two ways don't cover each other
    x0, y0 = -along[1] / length * aside, along[0] / length * aside
    tail, head = (
        (start[0] + part * along[0] + x0, start[1] + part * along[1] + y0) for part in (0.32, 0.7)
    )
    colour = style.COLOURS[message.source % len(style.COLOURS)]
    axes.add_patch(FancyArrowPatch(tail, head, arrowstyle="-|>", mutation_scale=14, shrinkA=0,
                                   shrinkB=0, linewidth=1.8, color=colour, zorder=2))  # fmt: skip
    x, y = (tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2
    chunks = sorted(message.content)
    scale = 0.7
    left = x - len(chunks) * _CELL * scale / 2
    for number, chunk in enumerate(chunks):
        box = (left + number * _CELL * scale, y - _HIGH * scale / 2)
        _draw_load(axes, *box, message.content[chunk], scale)
    label = f"chunk {chunks[0]}" if len(chunks) == 1 else ""  # several: you see them all
    beside = len(chunks) * _CELL * scale / 2 + 0.05
    axes.text(x + (beside if x > 0 else -beside), y, label, fontsize=7, va="center",
              ha="left" if x > 0 else "right", color=style.INK, zorder=8)  # fmt: skip


def _draw_load(axes: Axes, x: float, y: float, counts: Counts, scale: float) -> None:
    wide, high = _CELL * scale, _HIGH * scale
    each = high / len(counts)
    axes.add_patch(Rectangle((x, y), wide, high, facecolor="white", edgecolor=style.INK,
                             linewidth=0.8, zorder=7))  # fmt: skip
    for rank, times in enumerate(counts):
        if times:
            low = y + high - (rank + 1) * each
            colour = style.COLOURS[rank % len(style.COLOURS)]
            axes.add_patch(Rectangle((x, low), wide, each, facecolor=colour, zorder=7))


def _draw_bytes(axes: Axes, recording: Recording, step: int) -> None:
    """What each rank has sent up to and with this step, in shares of its data."""
    unit = recording.data_bytes
    for rank in range(recording.size):
        before, now = (
            sum(m.bytes for m in recording.messages if m.source == rank and m.step in when) / unit
            for when in (range(step), range(step, step + 1))
        )
        colour = style.COLOURS[rank % len(style.COLOURS)]
        axes.bar(rank, before, color=colour, width=0.6)
        axes.bar(rank, now, bottom=before, color=colour, width=0.6, alpha=0.45)
    axes.axhline(recording.least / unit, color=style.INK, linestyle="dashed", linewidth=1,
                 label="the least, if all send the same")  # fmt: skip
    axes.bar(0, 0, color="#777777", label="sent before")
    axes.bar(0, 0, color="#777777", alpha=0.45, label="sent in this step")
    top = max([recording.least, *recording.bytes_sent]) / unit
    axes.set_ylim(0, 1.45 * top)
    axes.set_xticks(range(recording.size), [f"rank {rank}" for rank in range(recording.size)])
    axes.legend(fontsize=8, loc="upper right", frameon=False)
    style.label(axes, "What each rank has sent", "", "bytes sent / bytes of the data")


def _player(frames: list[tuple[str, str]]) -> str:
    """The frames with a slider and buttons; one script, no library."""
    name = f"replay{os.urandom(4).hex()}"
    images = "".join(
        f'<img src="data:image/png;base64,{data}" alt="{html.escape(text)}" width="760" '
        f'style="display:{"none" if number else "block"};max-width:100%">'
        for number, (data, text) in enumerate(frames)
    )
    last = len(frames) - 1
    button = 'style="padding:2px 12px;margin-right:6px" type="button"'
    return f"""<div id="{name}" style="max-width:780px">
<div class="frames">{images}</div>
<div style="display:flex;align-items:center;margin:6px 0">
<button {button} class="back" aria-label="one step back">&#9664;</button>
<button {button} class="play" aria-label="play or pause">play</button>
<button {button} class="on" aria-label="one step on">&#9654;</button>
<input type="range" min="0" max="{last}" value="0" aria-label="step" style="flex:1">
</div>
<div class="text" aria-live="polite" style="min-height:2.6em">{html.escape(frames[0][1])}</div>
<script>(function() {{
const box = document.getElementById("{name}"), images = box.querySelectorAll("img");
const slider = box.querySelector("input"), text = box.querySelector(".text");
const play = box.querySelector(".play"); let timer = null;
function go(step) {{
  slider.value = step;
  images.forEach((image, number) => image.style.display = number == step ? "block" : "none");
  text.textContent = images[step].alt;
}}
function stop() {{ clearInterval(timer); timer = null; play.textContent = "play"; }}
function move(by) {{ go(Math.min({last}, Math.max(0, Number(slider.value) + by))); }}
slider.oninput = () => {{ stop(); go(Number(slider.value)); }};
box.querySelector(".back").onclick = () => {{ stop(); move(-1); }};
box.querySelector(".on").onclick = () => {{ stop(); move(1); }};
play.onclick = () => {{
  if (timer) return stop();
  if (Number(slider.value) == {last}) go(0);
  play.textContent = "pause";
  timer = setInterval(() => Number(slider.value) < {last} ? move(1) : stop(), 1200);
}};
}})();</script></div>"""
