"""`hvdlab timeline`: the summary of a timeline in a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .read import COLUMNS, load


def run(path: Path) -> None:
    """Print the time in each phase, and which rank the others waited for.

    Raises OSError or ValueError for a file that is no timeline.
    """
    timeline = load(path)
    console = Console()
    table = Table(COLUMNS[0], title=f"{path.name}, {timeline.seconds:.3f} s")
    for column in COLUMNS[1:]:
        table.add_column(column, justify="right")
    for one in timeline.phases():
        table.add_row(*one.row)
    console.print(table)
    for rank, (times, seconds) in timeline.late().items():
        console.print(f"rank {rank} came last {times:,} times; waited: {1e3 * seconds:,.1f} ms")
    if timeline.truncated:
        console.print("The file ends in the middle: the job was killed, or still runs.")
    for name in sorted({span.tensor for span in timeline.unfinished}):
        console.print(f"never finished: {name}", markup=False)
    console.print("Open it at https://ui.perfetto.dev (Open trace file); it stays on your machine.")
