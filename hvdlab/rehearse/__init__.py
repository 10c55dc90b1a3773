"""`hvdlab rehearse`: tonight what the class does tomorrow, on this machine, as this user.

Each lab of a schedule runs solved, then as students get it, by so many of them at once as asked
for; `watch` measures, `page` tells.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from .. import handout, watchdog
from ..builder import BuildError, Lab, execute, find, instructor, read, student
from ..builder.source import read_card
from .watch import MARK, Seen, Watch

SCHEDULES = {
    "half-day": ("00", "01", "05", "06", "08", "09"),
    "day": ("00", "01", "02", "03", "05", "06", "08", "09", "11"),
    "two-days": (),  # all labs
}


@dataclass
class Run:
    """One lab, solved or as students get it, by all students at once."""

    lab: str
    solved: bool
    promised: int  # minutes, by the lab's first cell
    cards: int  # minutes, by the cards of its exercises; extra ones are for those who are done
    waited: float = 0.0  # seconds in which cells ran, of the slowest student
    longest: tuple[float, str] = (0.0, "")  # seconds of the slowest cell, the heading above it
    seen: Seen = field(default_factory=Seen)
    problems: list[str] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)  # what was written past the notebooks


def rehearse(wanted: list[str], students: int, out: Path) -> Iterator[Run]:
    """Run these labs, or those of a schedule, and yield what was seen of each.

    The executed notebooks, with each cell's time, go to `out`, with logs of what was written
    past them, where something was.

    Raises:
        BuildError: there is no such lab.
    """
    numbers = [number for each in wanted for number in SCHEDULES.get(each, (each,))]
    sources = find(handout.source() / "labs", numbers)
    out.mkdir(parents=True, exist_ok=True)
    for source in sources:
        lab = read(source)
        for make in (instructor, student):
            yield _run(lab, make, students, out)


def _run(lab: Lab, make: Callable[[Lab], NotebookNode], students: int, out: Path) -> Run:
    cards = [read_card(cell.source) for cell in lab.cells if cell.kind == "exercise"]
    minutes = sum(int(card["minutes"]) for card in cards if card["importance"] != "extra")
    promised = re.search(r"\*\*Time\*\*: (\d+)", lab.cells[0].source)
    name, solved = lab.path.parent.name, make is instructor
    run = Run(name[:2], solved, int(promised[1]) if promised else 0, minutes)
    kind = "solved" if solved else "unsolved"
    files = [out / f"{name}-{kind}-{number}.ipynb" for number in range(1, students + 1)]
    logs = [file.with_suffix(".log") for file in files]
    with tempfile.TemporaryDirectory(
        prefix="hvdlab-rehearse-", ignore_cleanup_errors=True
    ) as folder:
        places = [Path(folder, f"student-{n}") for n in range(1, students + 1)]
        for place in places:
            handout.write(place)
        with Watch(folder) as run.seen, ThreadPoolExecutor(students) as pool:
            notebooks = [make(lab) for _ in places]
            works = [place / "labs" / name for place in places]
            todo = zip(notebooks, works, logs, strict=True)
            runs = [pool.submit(_execute, *each) for each in todo]
            try:
                told = [each.result() for each in runs]
            except BaseException:  # an interrupt: without their kernels the threads end
                while not all(each.done() for each in runs):  # one may only be starting its own
                    watchdog.end(folder, MARK, politely=False)
                    wait(runs, 0.1)
                _filled(logs)
                raise
            # What ends with its notebook has a moment for it.
            deadline = time.monotonic() + watchdog.PATIENCE
            while watchdog.processes(folder, MARK) and time.monotonic() < deadline:
                time.sleep(0.2)
        if left := watchdog.end(folder, MARK):
            run.problems.append(f"{left} processes were left; hvdlab has ended them")
        run.seen.disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
        run.seen.disk //= students
    run.logs = _filled(logs)
    for number, (notebook, file, problem) in enumerate(zip(notebooks, files, told, strict=True), 1):
        nbformat.write(notebook, file)
        if problem:
            run.problems.append(f"student {number}: {problem} ({file.name})")
        run.problems += [f"student {number}: {line}" for line in _not_done(notebook, solved)]
        took = list(_times(notebook))
        run.waited = max(run.waited, sum(seconds for seconds, _ in took))
        run.longest = max([run.longest, *took])
    return run


def _filled(logs: list[Path]) -> list[Path]:
    """Those in which something was written; the others are removed."""
    for log in logs:
        if log.exists() and not log.stat().st_size:
            log.unlink()
    return [log for log in logs if log.exists()]


def _execute(notebook: NotebookNode, folder: Path, log: Path) -> str:
    try:
        execute(notebook, folder, handout.source() if handout.is_checkout() else None, log=log)
    except BuildError as error:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
        return f"{lines[0]} {lines[-1]}"
    return ""


def _times(notebook: NotebookNode) -> Iterator[tuple[float, str]]:
    """Seconds of each cell, and the heading that it stands under."""
    heading = ""
    for cell in notebook.cells:
        if cell.source.startswith("#") and cell.cell_type == "markdown":
            heading = cell.source.splitlines()[0].lstrip("# ")
        marks = cell.metadata.get("execution", {})
        if "iopub.execute_input" in marks and "shell.execute_reply" in marks:
            began, ended = (
                datetime.fromisoformat(marks[key].replace("Z", "+00:00"))
                for key in ("iopub.execute_input", "shell.execute_reply")
            )
            # Two threads of the kernel note these: of a short cell the end may come first.
            seconds = max(0.0, (ended - began).total_seconds())
            yield seconds, heading


def _not_done(notebook: NotebookNode, solved: bool) -> Iterator[str]:
    """The solved exercises whose check is not passed; in the others, errors in it."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            text = output.get("data", {}).get("text/plain", "")
            if cell.metadata.get("nbgrader", {}).get("grade"):
                head = text.partition("\n")[0]
                if "not right yet" in head or (solved and "not done yet" in head):
                    yield text.replace("\n", " ")[:300]
