"""Errors that a notebook shows in a line: their message says it all, our frames say nothing."""

from __future__ import annotations


class _Brief(BaseException):
    shown_as = ""  # by default the name of the class

    def _render_traceback_(self) -> list[str]:
        return [f"{self.shown_as or type(self).__name__}: {self}"]


class BriefError(_Brief, RuntimeError):
    """A cell that can't go on."""


class BriefInterrupt(_Brief, KeyboardInterrupt):
    """A cell that the interrupt button has ended."""

    shown_as = "KeyboardInterrupt"
