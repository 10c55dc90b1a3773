"""One progress bar for everything, in a terminal, in a notebook and in a log file."""

from __future__ import annotations

import shutil
import sys

from tqdm import tqdm  # the bar as text: tqdm.auto would draw a widget where ipywidgets is there


def bar(total: float | None, title: str, unit: str = "B", **options: object) -> tqdm:
    """Open a progress bar on stderr, in a notebook on stdout.

    Args:
        total: what 100 % is, in `unit`; None where it is not known.
        title: text in front of the bar.
        unit: "B" for bytes (shown as kB, MB), or a word such as "epoch".
        options: passed to tqdm.
    """
    size = shutil.get_terminal_size()
    in_notebook = "ipykernel" in sys.modules
    # A log file keeps every redraw as a line of its own, so redraw seldom there.
    often = sys.stderr.isatty() or in_notebook
    return tqdm(
        total=total,
        desc=title,
        unit=unit,
        unit_scale=unit == "B",
        mininterval=0.1 if often else 5.0,
        # Not tqdm's own measure: a terminal that says it has 0 lines would show nothing.
        ncols=None if in_notebook else size.columns,
        nrows=size.lines,
        file=sys.stdout if in_notebook else sys.stderr,  # stderr is pink in JupyterLab
        **options,
    )
