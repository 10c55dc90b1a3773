"""Run a training script with one and with several processes, and compare honestly.

from hvdlab.compare import compare
result = compare("scripts/solutions/fashion_mnist_torch.py", np=[1, 2], epochs=3)
result.show()               # table and notes
result.figure()             # shown by a notebook
result.save("results")      # compare.png and compare.json
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from . import cache, report
from .analysis import Run, spread_hides
from .job import CompareError, Job, run
from .machine import cores, describe, gpus, gpus_for, versions
from .trial import announce, images_for, try_out

__all__ = ["CompareError", "Comparison", "Job", "Run", "compare", "default_np", "run"]


@dataclass
class Comparison:
    """Runs of one script that differ in the number of processes."""

    script: Path
    np: list[int]
    runs: list[Run] = field(default_factory=list)
    machine: dict[str, object] = field(default_factory=describe)
    packages: dict[str, str] = field(default_factory=versions)
    hidden_gpus: int = 0  # too few for the processes, so that all runs were on the CPU
    images: int | None = None  # of the training set, in each epoch; None for all

    @property
    def baseline(self) -> Run:
        """One process with as many threads as each process of the other runs."""
        return next(run for run in self.runs if run.job.np == 1 and not run.reference)

    @property
    def references(self) -> list[Run]:
        """One process with all cores, where that is another run than the baseline."""
        return [run for run in self.runs if run.reference]

    @property
    def largest(self) -> Run:
        """The run with the most processes."""
        return max((run for run in self.runs if not run.reference), key=lambda run: run.job.np)

    def show(self, console: Console | None = None) -> None:
        """Print the table and what it allows to be said."""
        console = console or Console()
        console.print(report.table(self))
        # At once: a notebook sets each print apart from the others.
        notes = "\n".join(f"- {note}" for note in report.notes(self))
        console.print(notes, markup=False, highlight=False)

    def figure(self):
        """Speed and accuracy as a matplotlib figure."""
        return report.figure(self)

    def save(self, folder: str | os.PathLike[str], name: str = "compare") -> tuple[Path, Path]:
        """Write the figure and all the numbers; returns the paths of the two files.

        Raises:
            CompareError: the folder can't be written.
        """
        plot, numbers = Path(folder) / f"{name}.png", Path(folder) / f"{name}.json"
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.figure().savefig(plot, dpi=150)
            numbers.write_text(json.dumps(report.as_json(self), indent=1) + "\n")
        except OSError as error:
            raise CompareError(f"{folder} can't be written ({error.strerror or error})") from None
        return plot, numbers


def default_np() -> list[int]:
    """1, and as many as there are GPUs; with fewer than two GPUs 1 and 2."""
    return [1, max(2, len(gpus()))]


def compare(
    script: str | os.PathLike[str],
    np: Sequence[int] | None = None,
    epochs: int = 3,
    arguments: Sequence[str] = (),
    max_repeats: int = 2,
    again: bool = False,
    minutes: float | None = None,
) -> Comparison:
    """Train with each number of processes and gather the figures.

    Before the first run it says on stderr what will run; with `minutes`, a trial on a few images
    tells how many can be had in that time, and the bars show the time left from the start.

    One process always runs: with the threads that each process has in the largest run (the
    baseline), and, on a CPU, with all cores (the reference). Where the spread leaves the
    answer open, the runs are repeated. Runs done before on this machine are not done again.
    Where there are fewer GPUs than processes, all runs are on the CPU.

    Args:
        script: takes --epochs, --threads and --log-dir, and writes epochs.jsonl there.
        np: numbers of processes; default_np() by default.
        epochs: passes over the data in each run; the first of them is left out as warm-up.
        arguments: passed on to the script.
        max_repeats: how often a run is done at most.
        again: run everything anew.
        minutes: train on only so many images in each epoch, by the script's --limit, that all
            of it takes about so long. The runs are then done twice in any case, in turn, since
            short epochs differ more.

    Raises:
        CompareError: the script is missing or takes no --limit for `minutes`, a number makes no
            sense, or a job failed.
    """
    path = Path(script).resolve()
    if not path.is_file():
        raise CompareError(f"there is no script {script}")
    counts = sorted({1, *(np or default_np())})
    if counts[0] < 1 or epochs < 1 or max_repeats < 1:
        raise CompareError("processes, epochs and repeats are numbers from 1 on")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise CompareError(f"a comparison can't take {minutes} minutes; try 2.5")
    if minutes is not None and "--limit" not in path.read_text(errors="replace"):
        raise CompareError(f"{script} takes no --limit, which --minutes needs")
    rounds = 1 if minutes is None else 2
    with gpus_for(counts[-1]) as hidden:
        result = Comparison(path, counts, hidden_gpus=hidden)
        threads = max(1, cores() // counts[-1])
        jobs = [Job(path, count, threads, epochs, tuple(arguments)) for count in counts]
        # Two epochs and the one that warms up give its speed; it need not train to the end.
        whole = replace(jobs[0], threads=cores(), epochs=min(epochs, 3))
        reference = [whole] if cores() > threads else []
        estimate = None
        if minutes is not None:
            estimate = try_out(jobs[0], again)
            result.images = images_for(estimate, [*jobs, *reference], minutes * 60 / rounds)
            limited = (*arguments, f"--limit={result.images}")
            jobs = [replace(job, arguments=limited) for job in jobs]
            reference = [replace(job, arguments=limited) for job in reference]
        if again or not all(cache.load(cache.key(job, 0)) for job in jobs):
            announce([jobs[0], *reference, *jobs[1:]], rounds, result.images, estimate)

        def once_more(one: Run) -> None:
            name = cache.key(one.job, len(one.repeats))
            found = None if again else cache.load(name)
            if found is None:
                expected = estimate.of_epoch(one.job, result.images) if estimate else None
                found = run(one.job, expected=expected)
                cache.store(name, found)
            one.repeats.append(found)

        for job in jobs:
            result.runs.append(Run(job))
            once_more(result.runs[-1])
        on_cpu = result.baseline.last.get("device", "cpu") == "cpu"
        if on_cpu and reference:
            result.runs.insert(1, Run(reference[0], reference=True))
            once_more(result.runs[1])
        _repeat(result, once_more, rounds, max(rounds, max_repeats))
    return result


def _repeat(result: Comparison, once_more: Callable[[Run], None], rounds: int, most: int) -> None:
    """Do each run again: so often in all, and at most `most` times where the spread asks for it."""
    for _ in range(rounds - 1):
        for one in result.runs:
            once_more(one)
    while len(result.baseline.repeats) < most:
        open_runs = _open(result)
        if not open_runs:
            break
        # The baseline runs again too: whatever else the machine does then, both meet it.
        for one in [result.baseline, *open_runs]:
            once_more(one)


def _open(result: Comparison) -> list[Run]:
    """The runs that should be repeated: noisy, or not to be told from the baseline."""
    noisy_base = result.baseline.is_noisy
    return [
        run
        for run in result.runs
        if run is not result.baseline
        and (
            noisy_base or run.is_noisy or (not run.reference and spread_hides(run, result.baseline))
        )
    ]
