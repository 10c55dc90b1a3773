"""One cell on all ranks: output by rank, errors, interrupts, and a word on what is stuck."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

from ..brief import BriefError, BriefInterrupt
from ..magic import SHOWN
from . import explain, remote

if TYPE_CHECKING:
    from .cluster import Cluster

EXPLAIN_AFTER = 4.0  # seconds until a waiting cell says what it waits for
_AFTER_AN_ERROR = 2.0  # seconds that the other ranks get to end by themselves
_AFTER_AN_INTERRUPT = 6.0


class RanksFailed(BriefError):
    """A rank raised an error in a cell. What it was has been shown already."""


def run(cluster: Cluster, code: str, limit: float | None = None) -> bool:
    """Run the code on all ranks and show what they print; see `Engines.run`.

    False: a rank could not be interrupted, and the engines must be started anew.

    Raises:
        EnginesError: a rank's process has ended.
        RanksFailed: a rank raised an error.
    """
    cell = _Cell(cluster, code)
    deadline = float("inf") if limit is None else time.monotonic() + limit
    pressed = False
    try:
        why = cell.wait(deadline)
    except KeyboardInterrupt:
        why, pressed = "button", True
    if why == "limit":
        _tell(f"{limit:g} seconds are over: the cell is interrupted on all ranks.")
    if not cluster.alive:
        cell.show(all_of_it=True)
        cluster.check()
    if why != "done" and not cell.interrupt():
        _tell("A rank is in a call that can't be interrupted, so all ranks are started anew. "
              "Their variables are gone.")  # fmt: skip
        return False
    if pressed:
        raise BriefInterrupt("the ranks were interrupted and are ready again")
    if why != "limit":
        cell.finish()
    return True


class _Cell:
    def __init__(self, cluster: Cluster, code: str):
        self.cluster = cluster
        self.result = cluster.view.execute(code, silent=False, block=False)
        self.ranks = [cluster.who[engine]["rank"] for engine in cluster.client.ids]
        self.shown = dict.fromkeys(self.ranks, (0, 0, 0))
        self.printed = 0
        self.handle: Any = None
        self.explained = ""

    @property
    def done(self) -> bool:
        return self.result.done()

    def messages(self) -> list[tuple[int, dict[str, Any]]]:
        """For each rank what is known of its run of the cell."""
        found = self.result.metadata
        found = found if isinstance(found, list) else [found]
        return sorted(zip(self.ranks, found, strict=True), key=lambda item: item[0])

    def wait(self, deadline: float) -> str:
        """Until all ranks are "done", one has "failed" and others go on, one's process has
        "ended", or the "limit"."""
        failed_at = None
        started = time.monotonic()
        while not self.done and time.monotonic() < deadline:
            self.result.wait(0.1)
            self.show()
            if not self.cluster.alive:
                return "ended"
            now = time.monotonic()
            if "failed in" in self.ended().values():
                failed_at = failed_at or now
                if now > failed_at + _AFTER_AN_ERROR:
                    self.say_what_is_stuck()
                    return "failed"
            if now > started + EXPLAIN_AFTER:
                self.say_what_is_stuck()
        return "done" if self.done else "limit"

    def ended(self) -> dict[int, str]:
        """The ranks that are done with the cell, and how."""
        return {
            which: "failed in" if info["status"] == "error" else "finished"
            for which, info in self.messages()
            if info["completed"]
        }

    def say_what_is_stuck(self) -> None:
        """Explain the wait, and keep the explanation up to date."""
        ended = self.ended()
        running = [which for which in self.ranks if which not in ended]
        text = explain.explain(explain.read_notes(self.cluster.folder, running), ended)
        if not text and self.handle is None:
            return
        if _without_seconds(text) != _without_seconds(self.explained):
            self.explained = text or self.explained
            shown = _Explanation(text)
            if self.handle is None:
                self.handle = _display(shown)
            else:
                self.handle.update(shown)

    def interrupt(self) -> bool:
        """End the cell on all ranks and make them ready for the next; False if one hangs on."""
        with _uninterrupted():
            if not self.explained:
                time.sleep(2 * remote.NOTE_EVERY)
                self.say_what_is_stuck()
            self.show(all_of_it=True)
            end = time.monotonic() + _AFTER_AN_INTERRUPT
            while not self.done and time.monotonic() < end:
                self.cluster.interrupt(set(self.ranks) - self.ended().keys())
                self.result.wait(2.0)
            self.show(all_of_it=True, errors=False)  # without the ranks' own KeyboardInterrupt
            if not self.done:
                return False
            self.cluster.check()
            self.cluster.view.apply_async(remote.renew).get(timeout=30)
            return True

    def finish(self) -> None:
        """Show the rest; raise RanksFailed for errors."""
        with contextlib.suppress(Exception):
            self.result.wait_for_output(5)
        self.show(all_of_it=True)
        errors: dict[tuple[str, str], tuple[list[int], Any]] = {}
        outcomes = self.result.get(return_exceptions=True)
        for which, outcome in sorted(zip(self.ranks, outcomes, strict=True), key=lambda p: p[0]):
            if isinstance(outcome, BaseException):
                name = getattr(outcome, "ename", type(outcome).__name__)
                key = (name, str(getattr(outcome, "evalue", outcome)))
                errors.setdefault(key, ([], outcome))[0].append(which)
        if not errors:
            return
        told = []
        for (name, value), (ranks, outcome) in sorted(errors.items(), key=lambda e: e[1][0]):
            who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
            if name == "KeyboardInterrupt":
                told.append(f"{who} had to be interrupted")
                continue
            print(f"[{who}] {getattr(outcome, 'traceback', None) or value}")
            told.append(f"{who}: {name}: {value}")
        if "KeyboardInterrupt" not in {name for name, _ in errors}:
            # Ended by themselves; but a rank that stopped early may have left the others' calls.
            self.cluster.view.apply_async(remote.renew).get(timeout=30)
        raise RanksFailed("; ".join(told))

    def show(self, all_of_it: bool = False, errors: bool = True) -> None:
        """Print what has come since the last time, labelled by rank; whole lines only."""
        for which, info in self.messages():
            out, err, shown = self.shown[which]
            out += self._print(which, info.get("stdout", "")[out:], all_of_it)
            if errors:
                err += self._print(which, info.get("stderr", "")[err:], all_of_it)
            outputs = info.get("outputs", [])
            for output in outputs[shown:]:
                self._display(which, output)
            self.shown[which] = (out, err, len(outputs))
            answer = info.get("execute_result")
            if all_of_it and answer:
                text = answer.get("data", {}).get("text/plain", "")
                self._print(which, text + "\n", True)

    def _print(self, which: int, text: str, all_of_it: bool) -> int:
        if not all_of_it:
            text = text[: text.rfind("\n") + 1]
        if text and self.printed < SHOWN:
            labelled = "\n".join(f"[rank {which}] {line}" for line in text.splitlines())
            print(labelled[: SHOWN - self.printed], flush=True)
            self.printed += len(labelled)
            if self.printed >= SHOWN:
                print("The ranks print more than a notebook should hold; the rest is left out.")
        return len(text)

    def _display(self, which: int, output: dict[str, Any]) -> None:
        from IPython.display import display

        print(f"[rank {which}]", flush=True)
        display(output.get("data", {}), metadata=output.get("metadata", {}), raw=True)


class _Explanation:
    """Who waits for whom, as text and, in a notebook, with a colour."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        import html

        if not self.text:
            return ""  # they go on
        lines = "<br>".join(html.escape(line) for line in self.text.splitlines())
        return (
            "<div style='border-left:4px solid #8A6100;padding:4px 12px;font-family:monospace'>"
            f"{lines}<br>The interrupt button (■) ends this cell; the ranks stay usable.</div>"
        )


def _without_seconds(text: str) -> str:
    return re.sub(r"since \d+ s", "", text)


def _display(shown: Any) -> Any:
    from IPython.display import display

    return display(shown, display_id=os.urandom(8).hex())


def _tell(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def _uninterrupted() -> Any:
    """A second press of the button must not leave the ranks half-way."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
