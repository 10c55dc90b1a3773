"""A HOROVOD_TIMELINE inside the notebook.

    from hvdlab import timeline
    timeline.show("timeline.json")                  # picture and summary
    timeline.show("timeline.json", start=2.0, end=2.1)
    timeline.load("timeline.json").phases()         # the numbers

The picture is a Vega-Lite chart, which JupyterLab draws by itself: it can be zoomed and dragged
without the Internet, and the notebook holds its data alone, some ten kilobytes, not a library. The
same output carries a PNG, for everything that doesn't know Vega-Lite (GitHub, nbconvert, a PDF).
"""

from __future__ import annotations

import base64
import gzip
import html
import os
from collections.abc import Sequence
from pathlib import Path

from .read import COLUMNS, Arrival, Phase, Span, Timeline, in_bytes, load

__all__ = ["Arrival", "Phase", "Span", "Timeline", "load", "show", "summary"]

MOST_SPANS = 2500  # in one picture
MOST_BYTES = 128 << 10  # of a packed file that a notebook holds


def show(
    path: str | os.PathLike[str],
    start: float | None = None,
    end: float | None = None,
    tensors: str = "",
    title: str = "",
) -> None:
    """Show a timeline: a picture, a summary of it all, and how to open it in Perfetto.

    Args:
        path: the file that HOROVOD_TIMELINE named; one of a killed job is fine.
        start, end: what to draw, in seconds since the file's first event; where not given, as
            much as fits from the first span on.
        tensors: look only at those whose name contains this.
        title: above the picture; the file's name by default.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no timeline.
    """
    from IPython.display import HTML, display

    from .draw import bundle

    whole = load(path)
    whole = whole.part(0.0, whole.seconds, tensors)
    if start is None:
        start = min((span.start for span in whole.spans), default=0.0)
    part = whole.part(start, whole.last if end is None else end, most=MOST_SPANS)
    if part.spans:
        data, metadata = bundle(part, title or Path(path).name)
        display(data, metadata=metadata, raw=True)
    else:
        display(HTML("<p>Nothing happened in this part of the timeline.</p>"))
    display(HTML(summary(whole, part, Path(path))))


def summary(whole: Timeline, part: Timeline, path: Path) -> str:
    """The tables below the picture, as HTML."""
    notes = []
    if whole.truncated:
        notes.append(
            "The file ends in the middle: the job was killed, or still runs. "
            "All that was written is here."
        )
    if whole.unfinished:
        names = ", ".join(sorted({span.tensor for span in whole.unfinished})[:4])
        notes.append(f"<b>Never finished:</b> {html.escape(names)}. Look which rank has no tick.")
    if part.last < whole.last or part.first > whole.first:
        notes.append(
            f"The picture shows {part.first:.3f} s to {part.last:.3f} s of {whole.seconds:.3f} s; "
            "<code>start=</code> and <code>end=</code> choose another part."
        )
    tables = _table(COLUMNS, [one.row for one in whole.phases()])
    if late := whole.late():
        waits = [(f"rank {rank}", f"{n:,}", f"{1e3 * s:,.1f}") for rank, (n, s) in late.items()]
        tables += _table(("came last", "times", "the others waited (ms)"), waits)
    perfetto = (
        f"To look at every microsecond: {_download(path)}, open <a href='https://ui.perfetto.dev' "
        "target='_blank'>ui.perfetto.dev</a>, and drag the file into it. Your browser reads it; "
        "nothing is sent. Without the Internet, Chrome's <code>chrome://tracing</code> does the "
        "same."
    )
    return "".join(f"<p>{note}</p>" for note in [*notes, tables, perfetto])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(kind: str, texts: Sequence[str]) -> str:
        first, *rest = map(html.escape, texts)
        others = "".join(f"<{kind}>{text}</{kind}>" for text in rest)
        return f"<tr><{kind} style='text-align:left'>{first}</{kind}>{others}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def _download(path: Path) -> str:
    """A link that holds the file itself: the browser may be on another machine than the file."""
    packed = gzip.compress(path.read_bytes(), mtime=0)
    name = html.escape(f"{path.name}.gz", quote=True)
    if len(packed) > MOST_BYTES:
        return f"download <code>{html.escape(str(path))}</code> from the list of files"
    data = base64.b64encode(packed).decode()
    link = f"<a download='{name}' href='data:application/gzip;base64,{data}'>download {name}</a>"
    return f"{link} ({in_bytes(len(packed))})"
