"""What `hvdlab compare` does."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from . import CompareError, compare


def run(
    script: Path,
    np: str | None,
    epochs: int,
    arguments: list[str],
    max_repeats: int,
    again: bool,
    out: Path,
    minutes: float | None,
) -> None:
    """Compare, print the table and the notes, write the plot and the numbers.

    Raises:
        CompareError: the input makes no sense, or a job failed.
    """
    try:
        counts = [int(part) for part in np.split(",")] if np else None
    except ValueError:
        raise CompareError(f"--np takes numbers such as 1,2,4, not {np!r}") from None
    result = compare(script, counts, epochs, arguments, max_repeats, again, minutes)
    console = Console()
    result.show(console)
    for path in result.save(out):
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
