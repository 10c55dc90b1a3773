"""The checks below the exercises: what is done, what is not, and why.

with Check("averaged-gradient") as check:
    mean = check.value(averaged(first, second))         # nothing there yet: "not done yet"
    check.that(numpy.allclose(mean, whole), "it equals the gradient of the whole batch",
               seen=f"it differs by {abs(mean - whole).max():.3g}",
               hint="do both halves count the same?")

A check never ends the notebook: an error inside is part of its verdict. Only nbgrader's
autograder, which takes its points from exceptions, gets one at the end.
"""

from __future__ import annotations

import html
import os
import traceback
from types import TracebackType
from typing import Any, TypeVar

from .board import report

Value = TypeVar("Value")
_SIGNS = {"done": ("✔", "#00704F"), "open": ("○", "#8A6100"), "wrong": ("✘", "#B0413E")}


class NotDone(Exception):
    """The student's part is still empty."""


class Check:
    """The verdict on one exercise, shown at the end of its `with` block.

    `result` is "done", "open" (nothing written yet) or "wrong"; `lines` holds each statement as
    (result, text, details).
    """

    def __init__(self, name: str):
        self.name = name
        self.lines: list[tuple[str, str, str]] = []

    @property
    def result(self) -> str:
        """The worst of all lines."""
        results = {line[0] for line in self.lines}
        return next((r for r in ("open", "wrong") if r in results), "done")

    def value(self, value: Value | None, what: str = "this exercise") -> Value:
        """The student's value; None or ... mean that it isn't written yet, and end the check."""
        parts = value if isinstance(value, list | tuple) and value else [value]
        if value is None or any(part is None or part is ... for part in parts):
            raise NotDone(what)
        return value

    def that(self, true: Any, what: str, seen: str = "", hint: str = "") -> bool:
        """State one thing; if it isn't true, say what was seen and give a hint. Goes on."""
        true = bool(true)
        details = (
            "" if true else " ".join(part for part in (seen, hint and f"Hint: {hint}") if part)
        )
        self.lines.append(("done" if true else "wrong", what, details))
        return true

    def __enter__(self) -> Check:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False  # an interrupt
        if isinstance(error, NotDone):
            where = "replace YOUR CODE HERE in the cell above, and run both cells again"
            self.lines.append(("open", f"{error}: not done yet", where))
        elif error is not None:
            self.lines.append(("wrong", "your code runs", _where(error)))
        elif not self.lines:
            self.lines.append(("wrong", "the check looked at something", "it stated nothing"))
        self._show()
        report(self.name, self.result, self._sentence(error))
        if self.result != "done" and os.environ.get("NBGRADER_EXECUTION"):
            raise AssertionError(str(self))
        return True

    def _sentence(self, error: BaseException | None) -> str:
        """What is not right, in the check's words; what it saw may be the student's."""
        if error is not None and not isinstance(error, NotDone):
            return f"the code ends with {type(error).__name__}"
        wrong = [what for result, what, _ in self.lines if result == self.result != "done"]
        return wrong[0].partition(": ")[0] if wrong else ""

    def __str__(self) -> str:
        head = {"done": "done", "open": "not done yet", "wrong": "not right yet"}[self.result]
        lines = [f"{self.name}: {head}"]
        for result, what, details in self.lines:
            lines.append(
                f"  {_SIGNS[result][0]} {what}" + (f"\n      {details}" if details else "")
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for result, what, details in self.lines:
            sign, colour = _SIGNS[result]
            more = f"<br><span style='opacity:0.8'>{html.escape(details)}</span>" if details else ""
            rows.append(
                f"<div style='margin:2px 0 2px 1.4em;text-indent:-1.4em'><span "
                f"style='color:{colour};display:inline-block;width:1.4em;text-indent:0'>{sign}"
                f"</span>{html.escape(what)}{more}</div>"
            )
        colour = _SIGNS[self.result][1]
        head = html.escape(str(self).splitlines()[0])
        return (
            f"<div style='border-left:4px solid {colour};padding:4px 12px;margin:4px 0'>"
            f"<b style='color:{colour}'>{head}</b>{''.join(rows)}</div>"
        )

    def _show(self) -> None:
        try:
            from IPython.display import display  # which prints where no notebook is
        except ImportError:
            display = print
        display(self)

    def __repr__(self) -> str:
        return str(self)


def _where(error: Exception) -> str:
    """The error and the student's line that it comes from."""
    told = f"{type(error).__name__}: {error}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "ipykernel" in f.filename]
    if len(frames) > 1:  # the first is the check's own cell
        last = frames[-1]
        told += f" (in {last.name}, line {last.lineno} of its cell: {last.line})"
    return told
