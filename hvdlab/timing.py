"""Times that know their noise: repeats, spread, and no conclusion that they don't allow.

took = measure(lambda: model(batch), repeats=9)
took.text()                        # "12.3 ms (11.9 to 13.4 ms)"
compare(took, other, "numpy", "torch")   # a sentence; says so where the noise hides the answer
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Timing:
    """Times of one thing done several times, in seconds.

    `low` and `high` span the middle half of the times; of fewer than four, all of them.
    """

    times: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median."""
        return statistics.median(self.times)

    @property
    def low(self) -> float:
        """The lower end of the spread."""
        return self._quartiles()[0]

    @property
    def high(self) -> float:
        """The upper end of the spread."""
        return self._quartiles()[1]

    def _quartiles(self) -> tuple[float, float]:
        if len(self.times) < 4:
            return min(self.times), max(self.times)
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return low, high

    def text(self) -> str:
        """Such as "12.3 ms (11.9 to 13.4 ms)"."""
        return f"{seconds(self.middle)} ({seconds(self.low)} to {seconds(self.high)})"

    def __str__(self) -> str:
        return self.text()


def seconds(value: float) -> str:
    """A time with its unit, such as "12.3 ms"."""
    factor, unit = next((u for u in _UNITS if abs(value) >= u[0]), _UNITS[-1])
    return f"{value / factor:.3g} {unit}"


def measure(function: Callable[[], object], repeats: int = 7, warm_up: int = 1) -> Timing:
    """Call the function `repeats` times after `warm_up` calls that don't count."""
    if repeats < 2:
        raise ValueError("one time tells nothing of the noise: repeats must be at least 2")
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return Timing(tuple(times))


def slowest(times: Sequence[Sequence[float]]) -> Timing:
    """Of the times of all ranks (one row a rank) the slowest of each repeat: what all wait for."""
    return Timing(tuple(max(column) for column in zip(*times, strict=True)))


def clearly_less(first: Timing, second: Timing) -> bool | None:
    """Whether the first is faster; None where the spreads overlap, so nobody can tell."""
    if first.high < second.low:
        return True
    return False if second.high < first.low else None


def compare(first: Timing, second: Timing, name: str, other: str) -> str:
    """What the two timings allow to be said, in a sentence."""
    answer = clearly_less(first, second)
    if answer is None:
        return (
            f"{name} {first}, {other} {second}: no conclusion, the noise is as large as the "
            "difference. More repeats, or a quieter machine, may tell."
        )
    fast, slow = (name, other) if answer else (other, name)
    ratio = max(first.middle, second.middle) / min(first.middle, second.middle)
    told = f"{name} {first}, {other} {second}"
    return f"{told}: {fast} is clearly faster than {slow}, {ratio:.2g} times."
