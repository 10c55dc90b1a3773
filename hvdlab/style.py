"""How the course's figures look: one palette, titles, units, and room around the lines."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by nearly everyone, and in grey too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
INK = "#333333"


def figure(columns: int = 1, width: float = 5.2, height: float = 3.8) -> tuple[Figure, list]:
    """A figure with `columns` plots side by side (inches each), and their axes.

    It belongs to no window, so it works without a display and in a notebook.
    """
    fig = Figure(figsize=(width * columns, height), layout="constrained")
    axes = [fig.add_subplot(1, columns, column + 1) for column in range(columns)]
    for one in axes:
        one.set_prop_cycle(color=COLOURS)
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        one.set_axisbelow(True)
        one.tick_params(colors=INK)
    return fig, axes


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Title and axis names; write units in the names, such as "time (s)"."""
    axes.set_title(title, color=INK, fontsize=11)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)


def show(fig: Figure, alt: str) -> None:
    """Show a figure in the notebook, with a text for those who can't see it.

    `alt` says what the picture shows, in a sentence or two; a figure without one is refused
    with ValueError.
    """
    from html import escape

    from IPython.display import HTML, display

    if len(alt) < 20:
        raise ValueError("say in `alt` what the figure shows, in a sentence or two")
    data, metadata = as_png(fig, alt)
    display({"image/png": data, "text/plain": f"Figure: {alt}"}, metadata=metadata, raw=True)
    # JupyterLab does not pass the text on to the image, so it also stands below, folded.
    words = "<summary style='color:#777777;font-size:85%'>The figure in words</summary>"
    display(HTML(f"<details>{words}{escape(alt)}</details>"))


def as_png(fig: Figure, alt: str, dpi: int = 144) -> tuple[bytes, dict[str, dict[str, object]]]:
    """The figure as PNG, and the metadata by which a notebook knows its text and its width."""
    from io import BytesIO

    buffer = BytesIO()
    # No background: see-through in a dark theme would hide dark text, so it stays white.
    fig.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    width = round(fig.get_size_inches()[0] * 84)
    return buffer.getvalue(), {"image/png": {"alt": alt, "width": width}}
