"""`%%px [--limit SECONDS]`: the cell runs on every rank."""

from __future__ import annotations

import shlex


def px(line: str, cell: str | None = None) -> None:
    """Run a cell (%%px) or a line (%px) on all ranks that engines.start() has started.

    With --limit SECONDS the cell is interrupted after that time, as the interrupt button does.
    """
    from IPython.core.error import UsageError

    from . import EnginesError, current

    limit = None
    if cell is None:
        cell = line
    else:
        words = shlex.split(line)
        if words[:1] == ["--limit"] and len(words) == 2 and words[1].replace(".", "", 1).isdigit():
            limit = float(words[1])
        elif words:
            raise UsageError("%%px takes nothing, or --limit SECONDS; the code stands below it")
    try:
        ranks = current()
    except EnginesError as error:
        raise UsageError(str(error)) from None
    ranks.run(cell, limit)
