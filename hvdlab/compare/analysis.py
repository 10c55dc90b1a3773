"""From epochs to statements: medians, spread, and what they allow to be said."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from .job import Epoch, Job

# Speeds that differ by more than this share within one run are worth another run.
NOISY = 0.15
# With more of the processors taken by other programs, times say little about the script.
BUSY = 0.15


@dataclass(frozen=True)
class Range:
    """A value with the lowest and the highest that the measurements allow."""

    middle: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Such as "1.85 (1.80 to 1.91)"."""
        if self.low == self.high:
            return f"{self.middle:,.{digits}f}"
        return f"{self.middle:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"

    def short(self, digits: int = 2) -> str:
        """Such as "1.85 ± 0.06": half the way from lowest to highest."""
        if self.low == self.high:
            return f"{self.middle:,.{digits}f}"
        return f"{self.middle:,.{digits}f} ± {(self.high - self.low) / 2:,.{digits}f}"


@dataclass
class Run:
    """One job and the epochs of every time that it ran."""

    job: Job
    repeats: list[list[Epoch]] = field(default_factory=list)
    reference: bool = False  # one process with all cores: not what the speed-up is against

    @property
    def steady(self) -> list[Epoch]:
        """All epochs but the first of each repeat, which warms up."""
        return [epoch for epochs in self.repeats for epoch in epochs if not epoch["is_warmup"]]

    @property
    def rate(self) -> Range:
        """Images per second over the steady epochs: median, and the spread around it.

        The spread goes from the lowest to the highest; from four epochs on it is the middle
        half of them, so that more repeats narrow it down. Beside a single steady epoch the
        first epoch has to show the spread: too wide is safer than none.
        """
        rates = [epoch["images_per_second"] for epoch in self.steady]
        every = [epoch["images_per_second"] for epochs in self.repeats for epoch in epochs]
        if len(rates) >= 4:
            low, middle, high = statistics.quantiles(rates, n=4, method="inclusive")
            return Range(middle, low, high)
        shown = rates if len(rates) > 1 else every
        return Range(statistics.median(rates or every), min(shown), max(shown))

    @property
    def epochs_run(self) -> int:
        """All epochs of all repeats."""
        return sum(len(epochs) for epochs in self.repeats)

    @property
    def is_noisy(self) -> bool:
        """Whether its own epochs differ so much that another repeat is worth its time."""
        return (self.rate.high - self.rate.low) / self.rate.middle > NOISY

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last epoch, 0 to 1; the median of the repeats."""
        return statistics.median(epochs[-1]["accuracy"] for epochs in self.repeats)

    @property
    def others_cpu(self) -> float:
        """The largest share of the processors that other programs took, 0 to 1."""
        return max(float(epochs[-1].get("others_cpu", 0)) for epochs in self.repeats)

    @property
    def last(self) -> Epoch:
        """The record of the last epoch."""
        return self.repeats[-1][-1]


def speedup(run: Run, baseline: Run) -> Range:
    """How many times the baseline's images per second; extremes against extremes."""
    own, base = run.rate, baseline.rate
    return Range(own.middle / base.middle, own.low / base.high, own.high / base.low)


def unclear(run: Run, baseline: Run) -> str | None:
    """Why no conclusion can be drawn from the two, or None if one can."""
    others = max(run.others_cpu, baseline.others_cpu)
    if others > BUSY:
        return f"other programs took {100 * others:.0f} % of the processors meanwhile"
    return spread_hides(run, baseline)


def spread_hides(run: Run, baseline: Run) -> str | None:
    """Why the spread of the epochs leaves open which of the two is faster, or None."""
    if min(run.epochs_run, baseline.epochs_run) < 2:
        return "one epoch tells nothing of the spread"
    ratio = speedup(run, baseline)
    if ratio.low <= 1.0 <= ratio.high:
        return "the spread is larger than the difference"
    return None


def conclusion(run: Run, baseline: Run) -> str:
    """What the measurements say of a run against the baseline, in a sentence."""
    ratio = speedup(run, baseline)
    reason = unclear(run, baseline)
    against = f"{run.job.title}, against {baseline.job.title}"
    if reason:
        return f"{against}: {ratio.text()} times as fast, but no conclusion: {reason}."
    word = "faster" if ratio.middle > 1 else "slower"
    return f"{against}: {ratio.text()} times as fast, clearly {word}."
