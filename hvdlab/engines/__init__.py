"""Ranks that stay up between the cells of a notebook: MPI engines, and `%%px`.

    from hvdlab import engines

    ranks = engines.start(2)    # shows them: rank, host, pid, local_rank
    %%px                        # at the top of a cell: every rank runs the cell
    ranks.pull("loss")          # a variable of every rank, in rank order
    engines.stop()              # also done when the kernel ends, whatever way it ends

What a rank prints is labelled by its rank. An error on one rank ends the cell on all of them, the
interrupt button does so too, and the ranks can be used again at once. A cell that is stuck says
who waits for whom.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from .cluster import Cluster, EnginesError, default_number, stop_orphans
from .remote import variable
from .run import RanksFailed, run

__all__ = ["Engines", "EnginesError", "RanksFailed", "current", "start", "stop"]


class Engines:
    """Running ranks; `with engines.start(2) as ranks:` stops them at the end of the block."""

    def __init__(self, n: int):
        self._cluster = Cluster(n)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._cluster.n

    @property
    def who(self) -> list[dict[str, Any]]:
        """rank, host, pid and local_rank of each, in rank order."""
        return sorted(self._cluster.who.values(), key=lambda one: one["rank"])

    def run(self, code: str, limit: float | None = None) -> None:
        """Run a cell's code on all ranks, as `%%px` does; after `limit` seconds it is ended.

        Raises:
            RanksFailed: a rank raised an error, which is shown by its rank.
            EnginesError: a rank's process has ended, now or before.
        """
        self._cluster.check()
        if not run(self._cluster, code, limit):
            self.restart()

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on all ranks; what each of them returned, in rank order."""
        self._cluster.check()
        result = self._cluster.view.apply_async(function, *args, **kwargs)
        return self._by_rank(result, self._cluster.wait(result))

    def pull(self, name: str) -> list[Any]:
        """A variable of every rank, in rank order; None where a rank has none of that name."""
        return self.apply(variable, name)

    def push(self, **variables: Any) -> None:
        """Set variables on every rank."""
        self._cluster.check()
        self._cluster.wait(self._cluster.view.push(variables, block=False))

    def restart(self) -> None:
        """Stop the ranks and start new ones; their variables are gone."""
        n = self.size
        self._cluster.stop()
        self._cluster = Cluster(n)

    def stop(self) -> None:
        """Stop all ranks; none of their processes stays."""
        self._cluster.stop()

    @property
    def alive(self) -> bool:
        """Whether all ranks are still there."""
        return self._cluster.alive

    def _by_rank(self, result: Any, values: list[Any]) -> list[Any]:
        ranks = [self._cluster.who[info["engine_id"]]["rank"] for info in result.metadata]
        return [value for _, value in sorted(zip(ranks, values, strict=True), key=lambda p: p[0])]

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        stop()

    def __repr__(self) -> str:
        lines = [f"{'rank':>4}  {'host':<20}  {'pid':>8}  local_rank"]
        for one in self.who:
            lines.append(
                f"{one['rank']:>4}  {one['host']:<20}  {one['pid']:>8}  {one['local_rank']:>10}"
            )
        return "\n".join(lines)


_running: Engines | None = None


def start(n: int | None = None) -> Engines:
    """Start `n` ranks; by default as many as there are GPUs, and at least 2.

    If as many are running already, they are used on, with all their variables.
    Raises:
        EnginesError: they don't start.
    """
    global _running
    n = default_number() if n is None else n
    if not isinstance(n, int) or n < 1:
        raise EnginesError(f"the number of ranks must be a whole number from 1 on, not {n!r}")
    left = stop_orphans()
    if left:
        print(f"hvdlab: {left} processes of an earlier notebook were still there; stopped them.")
    if _running is not None:
        if _running.size == n and _running.alive:
            return _running
        stop()
    _running = Engines(n)
    return _running


def stop() -> None:
    """Stop the ranks; does nothing if there are none."""
    global _running
    if _running is not None:
        running, _running = _running, None
        running.stop()


def current() -> Engines:
    """The running ranks.

    Raises:
        EnginesError: none are running.
    """
    if _running is None:
        raise EnginesError(
            "no ranks are running; start them with engines.start(2), also after a kernel restart"
        )
    return _running


atexit.register(stop)
