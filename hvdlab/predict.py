"""Prediction first: write down a number before you measure, then see both together.

guess = predict("start-up", 2.5, unit="s", question="How long do two ranks take to start?")
guess.reveal(measured)          # draws guess and measurement, and keeps both in the ledger
ledger()                        # all predictions of the course so far

The ledger is a file, predictions.json, beside the folders of the labs.
"""

from __future__ import annotations

import html
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .timing import Timing

FILE = "predictions.json"


@dataclass
class Prediction:
    """A question, the guess, and later the measurement with its spread, all in `unit`."""

    name: str
    question: str
    unit: str
    guess: float | None = None
    measured: float | None = None
    low: float | None = None
    high: float | None = None

    def reveal(self, measured: float | Timing, scale: float = 1.0) -> None:
        """Show guess and measurement together, and keep them.

        Without a guess the measurement stays hidden, and a line says so. `scale` turns what was
        measured into `unit`: a Timing in seconds for a guess in ms takes 1000.
        """
        if isinstance(measured, Timing):
            low, middle, high = measured.low, measured.middle, measured.high
            self.measured, self.low, self.high = (v * scale for v in (middle, low, high))
        else:
            self.measured = float(measured) * scale
        if self.guess is None:
            _say(f"<b>{html.escape(self.question)}</b><br>The answer is hidden until you have "
                 "written your guess above. Write it, then run both cells again.")  # fmt: skip
            return
        _keep(self)
        _draw([self], f"Prediction and measurement: {self.name}")

    @property
    def factor(self) -> float:
        """How many times too large (above 1) or too small the guess was."""
        if not self.guess or not self.measured:
            return math.nan
        return self.guess / self.measured

    def verdict(self) -> str:
        """The outcome in a sentence."""
        told = f"You said {_text(self.guess)} {self.unit}; "
        told += f"measured: {_text(self.measured)} {self.unit}"
        if self.low is not None and self.high != self.low:
            told += f" ({_text(self.low)} to {_text(self.high)})"
        if self.low is not None and self.low <= self.guess <= self.high:
            return f"{told}. Right on it."
        if not self.factor > 0:
            return f"{told}."
        times = max(self.factor, 1 / self.factor)
        if times < 1.05:
            return f"{told}. Nearly right."
        word = "too high" if self.factor > 1 else "too low"
        return f"{told}. {times:.2g} times {word}."


def predict(name: str, guess: float | None, unit: str, question: str) -> Prediction:
    """Take a guess down before the measurement. None means: not guessed yet.

    Raises:
        TypeError: the guess is no number.
    """
    if guess is ...:
        guess = None
    if guess is not None and (isinstance(guess, bool) or not isinstance(guess, int | float)):
        raise TypeError(f"your guess must be a number of {unit}, not {guess!r}")
    prediction = Prediction(name, question, unit, None if guess is None else float(guess))
    if guess is None:
        _say(f"<b>Your prediction, before you run on:</b> {html.escape(question)}<br>"
             f"Write a number of {html.escape(unit)} in place of <code>None</code>.")  # fmt: skip
    else:
        _say(f"<b>Your prediction:</b> {guess:,.6g} {html.escape(unit)}. "
             f"{html.escape(question)}")  # fmt: skip
    return prediction


def ledger() -> None:
    """Draw all predictions of the course so far: how far off was each?"""
    found = [Prediction(**entry) for entry in _read().values()]
    if not found:
        _say("No predictions yet.")
        return
    _draw(found, "Your predictions so far")


def path() -> Path:
    """The ledger's file: HVDLAB_LEDGER, or beside the labs' folders, or here."""
    if os.environ.get("HVDLAB_LEDGER"):
        return Path(os.environ["HVDLAB_LEDGER"])
    here = Path.cwd()
    for folder in [here, *here.parents]:
        if any(folder.glob("00_*")):
            return folder / FILE
    return here / FILE


def _read() -> dict[str, dict]:
    try:
        entries = json.loads(path().read_text(encoding="utf-8"))
        return {name: asdict(Prediction(**entry)) for name, entry in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(prediction: Prediction) -> None:
    entries = _read()
    entries[prediction.name] = asdict(prediction)
    file = path()
    new = file.with_suffix(f".{os.getpid()}")
    try:
        new.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(new, file)
    except OSError as error:
        _say(f"The ledger {html.escape(str(file))} can't be written: {error.strerror}.")


def _text(number: float) -> str:
    """Three digits are enough to compare; of large numbers all before the point."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _say(markup: str) -> None:
    from IPython.display import HTML, display

    display(HTML(f"<div style='border-left:4px solid #0072B2;padding:4px 12px'>{markup}</div>"))


def _draw(predictions: list[Prediction], title: str) -> None:
    """One row a prediction, as multiples of the measurement, so that all units fit in one plot."""
    from . import style

    fig, (axes,) = style.figure(width=7, height=1.7 + 0.45 * len(predictions))
    guess, measured = style.COLOURS[1], style.COLOURS[0]
    rows = range(len(predictions))[::-1]
    for row, one in zip(rows, predictions, strict=True):
        if one.low is not None:
            base = one.measured or 1
            axes.plot([one.low / base, one.high / base], [row, row], color=measured, linewidth=7,
                      alpha=0.35, solid_capstyle="butt")  # fmt: skip
        axes.plot([1, one.factor], [row, row], color="#BBBBBB", linewidth=1.5, zorder=1)
        axes.plot(1, row, "o", color=measured, markersize=9)
        axes.plot(one.factor, row, "D", color=guess, markersize=9)
        note = f"{_text(one.guess)} {one.unit}, measured {_text(one.measured)} {one.unit}"
        middle = math.sqrt(one.factor) if one.factor > 0 else 1
        axes.annotate(note, (middle, row), xytext=(0, 9), textcoords="offset points", ha="center",
                      fontsize=8, color=style.INK)  # fmt: skip
    factors = [one.factor for one in predictions if one.factor > 0]
    reach = 1.6 * max([2.0, *factors, *(1 / factor for factor in factors)])
    axes.set_xscale("log")
    axes.set_xlim(1 / reach, reach)
    axes.set_ylim(-0.6, len(predictions) - 0.2)
    axes.set_yticks(list(rows), [one.name for one in predictions])
    marks = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000]
    marks = [mark for mark in marks if 1 / reach <= mark <= reach]
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    axes.plot([], [], "D", color=guess, label="your guess")
    axes.plot([], [], "o", color=measured, label="measured, with its spread")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.12), ncols=2, frameon=False)
    style.label(axes, title, "times the measurement", "")
    style.show(fig, "; ".join(f"{one.name}: {one.verdict()}" for one in predictions))
    if len(predictions) == 1:
        _say(html.escape(predictions[0].verdict()))
