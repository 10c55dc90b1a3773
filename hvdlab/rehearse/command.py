"""`hvdlab rehearse`: a line for each lab while it runs, and a page to keep."""

from __future__ import annotations

import html
import platform
import shutil
import textwrap
from datetime import datetime
from pathlib import Path

import psutil

from ..compare.machine import cores, cpu_name
from ..doctor import examine
from ..doctor.asking import PROBLEM
from . import Run, rehearse

_HEAD = ("lab", "", "promised", "cards", "waiting", "longest cell", "processes", "memory",
         "ports", "open ports", "disk", "the longest cell is in")  # fmt: skip
_LINE = "{} {:3} {:8} {:>9} {:>7} {:>8} {:>13} {:>10} {:>10}"  # of the first eight of them


def run(wanted: list[str], students: int, out: Path) -> bool:
    """Rehearse, print and write out/rehearsal.html; whether nothing needs the trainer.

    Raises BuildError where there is no such lab.
    """
    runs: list[Run] = []
    todo = [f"{f.what}: {f.detail}. {f.fix}" for f in examine() if f.state == PROBLEM]
    for each in rehearse(wanted, students, out):
        if not runs:
            print(_LINE.format(" ", *_HEAD))
        runs.append(each)
        print(_LINE.format("✘" if each.problems else "✔", *_row(each)), flush=True)
        _list(each.problems)
    todo += _advice(runs, students)
    if todo:
        print("To do:")
        _list(todo)
    page = out / "rehearsal.html"
    page.write_text(_page(runs, todo, students), encoding="utf-8")
    print(f"{'Ready' if not todo else 'Not ready yet'}; the page: {page}")
    return not todo


def _list(lines: list[str]) -> None:
    """Print them below each other; a path or a command is never broken."""
    wrapped = textwrap.TextWrapper(
        shutil.get_terminal_size().columns, initial_indent="  - ", subsequent_indent="    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in lines:
        print(wrapped.fill(line), flush=True)


def _row(run: Run) -> list[str]:
    seconds, heading = run.longest
    return [
        run.lab,
        "solved" if run.solved else "unsolved",
        f"{run.promised} min",
        f"{run.cards} min",
        f"{run.waited:.0f} s",
        f"{seconds:.0f} s",
        f"{run.seen.processes}",
        f"{run.seen.memory / 2**20:,.0f} MiB",
        f"{run.seen.ports}",
        f"{run.seen.open_ports}",
        f"{run.seen.disk / 2**20:,.1f} MiB",
        heading,
    ]


def _advice(runs: list[Run], students: int) -> list[str]:
    """What the trainer should do before the class."""
    todo = [f"lab {run.lab}: {problem}" for run in runs for problem in run.problems]
    memory = max((run.seen.memory for run in runs), default=0)
    if memory > 0.8 * psutil.virtual_memory().total:
        took = f"{_students(students)} took {memory / 2**30:.1f} GiB"
        todo.append(f"memory: {took} of this machine's")
    fetched = {name: size for run in runs for name, size in run.seen.fetched.items()}
    if fetched:
        size, largest = sum(fetched.values()) / 2**20, max(fetched, key=fetched.__getitem__)
        todo.append(
            f"{size:,.1f} MiB were fetched, such as {largest}; without the network they would be "
            "missing: hvdlab data --require-full, and HVDLITE_DATA_DIR"
        )
    if asked := {address for run in runs for address in run.seen.asked}:
        todo.append(f"the labs asked {', '.join(sorted(asked))}: does that answer in the room?")
    for run in runs:
        whole = run.cards + run.waited / 60
        if run.solved and run.promised and whole > run.promised:
            todo.append(
                f"lab {run.lab} promises {run.promised} minutes; its cards ({run.cards}) and its "
                f"waiting take {whole:.0f}: plan these, or leave out an exercise"
            )
    return todo


def _students(number: int) -> str:
    return "one student" if number == 1 else f"{number} students"


def _page(runs: list[Run], todo: list[str], students: int) -> str:
    def cells(kind: str, texts: list[str]) -> str:
        return "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in texts)

    rows = "".join(f"<tr>{cells('td', _row(run))}</tr>" for run in runs)
    advice = cells("li", todo) or "<li>nothing</li>"
    where = f"{platform.node()}, {cpu_name()}, {cores()} cores, "
    where += f"{psutil.virtual_memory().total / 2**30:.0f} GiB; {_students(students)} at a time"
    logs = ", ".join(f"<a href='{log.name}'>{log.name}</a>" for run in runs for log in run.logs)
    logs = logs and f"<p>What was written past the notebooks, on a terminal: {logs}</p>"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Rehearsal</title><style>"
        "body{font:15px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #ccc;padding:3px 9px;text-align:right;white-space:nowrap}"
        "tr>:nth-child(2),tr>:last-child{text-align:left}</style>"
        f"<h1>Rehearsal, {datetime.now():%Y-%m-%d %H:%M}</h1><p>{html.escape(where)}</p>"
        f"<h2>To do</h2><ul>{advice}</ul><h2>Labs</h2>"
        "<p>Promised is what a lab's first cell says. What it really takes is the minutes of its "
        "cards, without the extra exercises, and the waiting for its cells. Processes, memory and "
        "ports are those of all students together at the worst moment; open ports are those that "
        "other machines can reach. Waiting is that of the slowest student, disk that of one.</p>"
        f"<table><tr>{cells('th', list(_HEAD))}</tr>{rows}</table>{logs}</html>\n"
    )
