"""What the notebook calls on the engines.

Only they import MPI, inside of these functions: in the notebook's own process it would start a job
of one rank, whose shared memory stays behind when the kernel is killed.
"""

from __future__ import annotations

from typing import Any

NOTE_EVERY = 0.25  # seconds between two notes of what a rank waits for


def install(folder: str) -> dict[str, Any]:
    """See `rank.install`."""
    from . import rank

    return rank.install(folder)


def renew() -> None:
    """See `rank.renew`."""
    from . import rank

    rank.renew()


def variable(name: str) -> Any:
    """The value of a variable of the cells, or None."""
    from IPython import get_ipython

    return get_ipython().user_ns.get(name)
