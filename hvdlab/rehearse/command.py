"""`hvdlab rehearse`: a line for each lab while it runs, and a page to keep."""

from __future__ import annotations

import html
import platform
from datetime import datetime
from pathlib import Path

import psutil
from rich.console import Console

from ..compare.machine import cores, cpu_name
from ..doctor import examine
from ..doctor.asking import PROBLEM
from . import Run, rehearse

_HEAD = ("lab", "", "promised", "cards", "waiting", "longest cell", "processes", "memory", "ports",
         "disk")  # fmt: skip


def run(wanted: list[str], students: int, out: Path) -> bool:
    """Rehearse, print and write out/rehearsal.html; whether nothing needs the trainer.

    Raises BuildError where there is no such lab.
    """
    console, runs = Console(), []
    todo = [f"{f.what}: {f.detail}. {f.fix}" for f in examine() if f.state == PROBLEM]
    for each in rehearse(wanted, students, out):
        runs.append(each)
        row = dict(zip(_HEAD[2:], _row(each)[2:], strict=True))
        told = ", ".join(f"{name} {value}" for name, value in row.items())
        sign = "✘" if each.problems else "✔"
        console.print(f"{sign} lab {each.lab} {_row(each)[1]}: {told}", markup=False)
        for problem in each.problems:
            console.print(f"    {problem}", markup=False)
    todo += _advice(runs, students)
    for line in todo:
        console.print(f"To do: {line}", markup=False)
    page = out / "rehearsal.html"
    page.write_text(_page(runs, todo, students), encoding="utf-8")
    console.print(f"{'Ready' if not todo else 'Not ready yet'}; the page: {page}", markup=False)
    return not todo


def _row(run: Run) -> list[str]:
    seconds, cell = run.longest
    return [
        run.lab,
        "solved" if run.solved else "unsolved",
        f"{run.promised} min",
        f"{run.cards} min",
        f"{run.waited:.0f} s",
        f"{seconds:.0f} s ({cell[:40]})",
        f"{run.seen.processes}",
        f"{run.seen.memory / 2**20:,.0f} MiB",
        f"{run.seen.ports} ({run.seen.open_ports} beyond loopback)",
        f"{run.seen.disk / 2**20:,.1f} MiB",
    ]


def _advice(runs: list[Run], students: int) -> list[str]:
    """What the trainer should do before the class."""
    todo = [f"lab {run.lab}: {problem}" for run in runs for problem in run.problems]
    memory = max((run.seen.memory for run in runs), default=0)
    if memory > 0.8 * psutil.virtual_memory().total:
        todo.append(f"memory: {students} students took {memory / 2**30:.1f} GiB of this machine's")
    fetched = {name: size for run in runs for name, size in run.seen.fetched.items()}
    if fetched:
        size, largest = sum(fetched.values()) / 2**20, max(fetched, key=fetched.__getitem__)
        todo.append(
            f"{len(fetched)} files ({size:,.1f} MiB) were fetched, such as {largest}; without "
            "the network they would be missing: hvdlab data --require-full, and HVDLITE_DATA_DIR"
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


def _page(runs: list[Run], todo: list[str], students: int) -> str:
    def cells(kind: str, texts: list[str]) -> str:
        return "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in texts)

    rows = "".join(f"<tr>{cells('td', _row(run))}</tr>" for run in runs)
    advice = cells("li", todo) or "<li>nothing</li>"
    where = f"{platform.node()}, {cpu_name()}, {cores()} cores, "
    where += f"{psutil.virtual_memory().total / 2**30:.0f} GiB; {students} at once"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Rehearsal</title><style>"
        "body{font:15px sans-serif;margin:2em}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #ccc;padding:3px 9px;text-align:left}</style>"
        f"<h1>Rehearsal, {datetime.now():%Y-%m-%d %H:%M}</h1><p>{html.escape(where)}</p>"
        f"<h2>To do</h2><ul>{advice}</ul><h2>Labs</h2>"
        "<p>A lab's real time is its cards and the waiting. Processes, memory and ports are those "
        "of all students together at the worst moment; waiting is that of the slowest.</p>"
        f"<table><tr>{cells('th', list(_HEAD))}</tr>{rows}</table></html>\n"
    )
