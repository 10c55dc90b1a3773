"""Verdicts for people: a coloured table in a terminal, HTML in a notebook or a file."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .verdict import DONE, OPEN, SIGNS, UNSEEN, WORDS, WRONG, Verdict

_STYLES = {DONE: "green", OPEN: "yellow", WRONG: "red", UNSEEN: "dim"}
COLOURS = {DONE: "#00704F", OPEN: "#8A6100", WRONG: "#B0413E", UNSEEN: "#666666"}


def show(verdict: Verdict, whole: bool = False) -> None:
    """Print the verdict: in at most ten lines, or `whole`, as a table of all steps before that."""
    console = Console()
    if whole:
        console.print(_table(verdict))
    for result, text in verdict.brief():
        console.print(Text(text, _STYLES.get(result, "bold" if text[0] != " " else "italic")))
    if not whole and not verdict.done:
        console.print(Text("With --table: all steps, and what was seen of each.", "dim"))


def _table(verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, expand=False)
    table.add_column("step", min_width=20, max_width=26)
    table.add_column("", no_wrap=True)
    table.add_column("what was seen")
    for step in verdict.steps:
        seen = Text(step.seen)
        if step.why:
            seen.append(f"\n{step.why}", "dim")
        if step.look:
            seen.append(f"\nLook at: {step.look}", "italic")
        state = Text(f"{SIGNS[step.result]} {WORDS[step.result]}", _STYLES[step.result])
        table.add_row(Text(f"{step.number:2} {step.title}"), state, seen)
    return table


def to_html(verdict: Verdict) -> str:
    """The verdict as an HTML table."""
    rows = []
    for step in verdict.steps:
        more = [step.why, step.look and f"Look at: {step.look}"]
        details = "".join(f"<br><small>{html.escape(text)}</small>" for text in more if text)
        rows.append(
            f"<tr><td>{step.number} {html.escape(step.title)}</td>"
            f"<td style='color:{COLOURS[step.result]};white-space:nowrap'>{SIGNS[step.result]} "
            f"{WORDS[step.result]}</td><td style='text-align:left'>{html.escape(step.seen)}"
            f"{details}</td><td>{step.points}/{step.of}</td></tr>"
        )
    ends = "".join(f"<p>{html.escape(x)}</p>" for x in [*verdict.outside, verdict.ended] if x)
    return (
        f"<h2>{html.escape(verdict.script)}: {verdict.points} of {verdict.of} points</h2>"
        f"<table><tr><th>step</th><th></th><th>what was seen</th><th>points</th></tr>"
        f"{''.join(rows)}</table>{ends}"
    )


def page(verdicts: Sequence[Verdict], failed: dict[str, str]) -> str:
    """A whole class as one HTML page: the table of marks, then each verdict."""
    keys = list(dict.fromkeys(step.key for verdict in verdicts for step in verdict.steps))
    titles = {step.key: step.title for verdict in verdicts for step in verdict.steps}
    head = "".join(f"<th title='{html.escape(titles[key])}'>{key}</th>" for key in keys)
    rows = []
    for verdict in verdicts:
        results = {step.key: step for step in verdict.steps}
        cells = "".join(
            f"<td style='color:{COLOURS[results[key].result]}' "
            f"title='{html.escape(results[key].seen, quote=True)}'>"
            f"{SIGNS[results[key].result]}</td>" if key in results else "<td></td>"
            for key in keys
        )  # fmt: skip
        name = html.escape(verdict.script)
        rows.append(
            f"<tr><td style='text-align:left'><a href='#{name}'>{name}</a></td><td>"
            f"{verdict.points}/{verdict.of}</td>{cells}</tr>"
        )
    rows += [
        f"<tr><td style='text-align:left'>{html.escape(name)}</td><td></td>"
        f"<td colspan='{len(keys)}'>{html.escape(why)}</td></tr>"
        for name, why in failed.items()
    ]
    parts = "".join(
        f"<section id='{html.escape(each.script)}'>{to_html(each)}</section>" for each in verdicts
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Marks</title><style>"
        "body{font:15px sans-serif;margin:2em}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #ccc;padding:3px 9px;vertical-align:top}</style>"
        f"<h1>Marks</h1><table><tr><th>script</th><th>points</th>{head}</tr>{''.join(rows)}</table>"
        f"{parts}</html>\n"
    )


def to_csv(verdicts: Sequence[Verdict], failed: dict[str, str]) -> str:
    """A line for each step of each script."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["script", "version of", "step", "result", "points", "of", "seen"])
    for each in verdicts:
        for step in each.steps:
            table.writerow(
                [each.script, each.version_of, step.key, WORDS[step.result], step.points, step.of,
                 step.seen]
            )  # fmt: skip
        table.writerow(
            [each.script, each.version_of, "all", "done" if each.done else "not done",
             each.points, each.of, each.ended]
        )  # fmt: skip
    for name, why in failed.items():
        table.writerow([name, "", "all", "not checked", 0, "", why])
    return text.getvalue()
