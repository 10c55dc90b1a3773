"""One progress bar for everything, in a terminal, in a notebook and in a log file."""

from __future__ import annotations

import sys

from tqdm.auto import tqdm


def bar(total: float | None, title: str, unit: str = "B", **options: object) -> tqdm:
    """Open a progress bar on stderr.

    Args:
        total: what 100 % is, in `unit`; None where it is not known.
        title: text in front of the bar.
        unit: "B" for bytes (shown as kB, MB), or a word such as "epoch".
        options: passed to tqdm.
    """
    # A log file keeps every redraw as a line of its own, so redraw seldom there.
    often = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(
        total=total,
        desc=title,
        unit=unit,
        unit_scale=unit == "B",
        mininterval=0.1 if often else 5.0,
        dynamic_ncols=True,
        file=sys.stderr,
        **options,
    )
