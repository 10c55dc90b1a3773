"""Run one training job through horovodrun, watch its epochs, leave nothing behind."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ending import end
from ..progress import bar
from . import machine

Epoch = dict[str, Any]
GRACE_S = 15.0


class CompareError(RuntimeError):
    """A comparison can't be made; the text says why, with the job's own words."""


@dataclass(frozen=True)
class Job:
    """One training run: a script on `np` processes with `threads` CPU threads each.

    The script takes --epochs, --threads and --log-dir, and writes a line of JSON for each
    epoch into epochs.jsonl in that folder.
    """

    script: Path
    np: int
    threads: int
    epochs: int
    arguments: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The job in words, such as "2 processes x 1 thread"."""
        processes = "1 process" if self.np == 1 else f"{self.np} processes"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{processes} x {threads}"

    def command(self, log_dir: str) -> list[str]:
        """The command line that runs it."""
        launcher = [sys.executable, "-m", "hvdrun", "-np", str(self.np)]
        options = [f"--epochs={self.epochs}", f"--threads={self.threads}", f"--log-dir={log_dir}"]
        return [*launcher, sys.executable, str(self.script), *options, *self.arguments]


# How far it is, also within an epoch, by the time that one is expected to take.
_BAR = "{l_bar}{bar}| {elapsed}, {remaining} left{postfix}"


def run(job: Job, title: str = "", expected: float | None = None) -> list[Epoch]:
    """Run the job to its end, with a progress bar over its epochs.

    Args:
        title: what the bar shows in place of the job's own title.
        expected: seconds of an epoch, as far as they are known; the bar moves by them until
            the job's own epochs have shown how long they take.

    Returns:
        The records of epochs.jsonl; others_cpu in them is the share of the machine's
        processors that other programs took meanwhile, 0 to 1.

    Raises:
        CompareError: the job failed or reported nothing. Holds its command and its output.
    """
    with tempfile.TemporaryDirectory(prefix="hvdlab-compare-") as folder:
        log, output = Path(folder, "epochs.jsonl"), Path(folder, "output.txt")
        command = job.command(folder)
        epochs: list[Epoch] = []
        load = machine.OtherLoad()
        shown = _Progress(job, title or job.title, expected)
        with output.open("wb") as stream, shown:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C comes here first, once
            )
            try:
                while True:
                    ended = process.poll() is not None
                    for epoch in _read(log)[len(epochs) :]:
                        epochs.append(epoch)
                        shown.epoch_is_done(epoch)
                    if ended:
                        break
                    shown.time_goes_on()
                    time.sleep(0.1)
            finally:
                end(process, patience=GRACE_S)
        if process.returncode != 0 or not epochs:
            raise CompareError(_story(command, process.returncode, output, job))
        others = load.share()
        return [{**epoch, "others_cpu": others} for epoch in epochs]


class _Progress:
    """A bar over the epochs of a job that moves within an epoch as well."""

    def __init__(self, job: Job, title: str, expected: float | None):
        self.job, self.title, self.expected = job, title, expected
        self.done = 0
        self.since = time.monotonic()  # the beginning of the current epoch, or of the job
        self.bar = bar(job.epochs, self._words(), unit="epoch", bar_format=_BAR)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def epoch_is_done(self, epoch: Epoch) -> None:
        self.done += 1
        self.expected = time.monotonic() - self.since
        self.since = time.monotonic()
        self.bar.set_postfix_str(_in_short(epoch), refresh=False)
        self.bar.set_description_str(self._words(), refresh=False)
        self.bar.update(self.done - self.bar.n)

    def time_goes_on(self) -> None:
        if self.expected and self.done < self.job.epochs:
            part = (time.monotonic() - self.since) / self.expected
            self.bar.update(self.done + min(part, 0.95) - self.bar.n)

    def _words(self) -> str:
        return f"{self.title}, {self.done}/{self.job.epochs} epochs"


def _read(log: Path) -> list[Epoch]:
    """The whole lines of the log; the last one may still be in the writing."""
    try:
        text = log.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _in_short(epoch: Epoch) -> str:
    return f"{epoch['images_per_second']:,.0f} images/s, accuracy {epoch['accuracy']:.3f}"


def _story(command: list[str], code: int, output: Path, job: Job) -> str:
    lines = output.read_text(errors="replace").splitlines()
    skipped = [f"... {len(lines) - 60} lines before ..."] if len(lines) > 60 else []
    what = (
        f"the job with {job.title} failed with exit code {code}"
        if code
        else f"the job with {job.title} ended well, but wrote no epochs.jsonl into --log-dir"
    )
    shown = "\n".join(f"  | {line}" for line in [*skipped, *lines[-60:]])
    return f"{what}\n  command: {shlex.join(command)}\n  its output:\n{shown}"
