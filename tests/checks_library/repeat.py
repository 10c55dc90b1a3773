"""Does a check say the same each time? Runs programs of the library again and again.

    PYTHONPATH=tests python -m checks_library.repeat RECORDINGS --times 20 --warm

What each run said is kept in RECORDINGS/repeats.json, so that the work can be done in turns; the
table's command puts it into docs/checks.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from checks_library import library
from hvdlab.check.run import IMPORTS, warm
from hvdlab.check.verdict import OPEN, WRONG, Verdict

PROGRAMS = "mnist_torch-right-solution,mnist_torch-no-broadcast,mnist_torch-broadcast-by-rank-0"
FILE = "repeats.json"


def said(verdict: Verdict) -> str:
    """The verdict in short: the result of every step."""
    return ", ".join(f"{step.key} {step.result}" for step in verdict.steps)


def read(folder: Path) -> dict[str, list[str]]:
    """What the runs of each program said; empty where none was repeated."""
    path = folder / FILE
    return json.loads(path.read_text()) if path.exists() else {}


def lines(folder: Path) -> list[str]:
    """The part of docs/checks.md on repeated runs."""
    found = read(folder)
    rows = []
    for program in library():
        runs = Counter(found.get(program.file, []))
        if runs:
            most, count = runs.most_common(1)[0]
            broken = ", ".join(f"{k} {r}" for k, r in map(str.split, most.split(", "))
                               if r in (OPEN, WRONG)) or "all done"  # fmt: skip
            what = program.what if program.breaks else f"right ({program.what})"
            rows.append(
                f"| {program.script.name.removesuffix('.py')} | {what} | "
                f"{count} of {runs.total()} | {broken} |"
            )
    if not rows:
        return []
    return [
        "",
        "## The same verdict every time",
        "",
        "The same program, run again and again: how many runs gave the same result in every step.",
        "The runs are made by",
        "`PYTHONPATH=tests python -m checks_library.repeat RECORDINGS`, some with `--warm`.",
        "",
        "| script | what is wrong, or which style | same verdict | which |",
        "|---|---|---|---|",
        *rows,
    ]


def main() -> None:
    """Run what has not been run so many times yet."""
    parser = argparse.ArgumentParser(description="Run programs of the library again and again.")
    parser.add_argument("recordings", type=Path, help="folder with repeats.json, or for it")
    parser.add_argument("--times", type=int, default=20, help="runs of each program")
    parser.add_argument("--only", default=PROGRAMS, help="names of programs, with commas")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after these")
    parser.add_argument("--warm", action="store_true", help="one import of the framework for all")
    args = parser.parse_args()
    args.recordings.mkdir(parents=True, exist_ok=True)
    programs = {program.file.removesuffix(".json.gz"): program for program in library()}
    start = time.monotonic()
    for name in args.only.split(","):
        program = programs[name]
        modules = IMPORTS[program.script.framework]
        with warm(*modules) if args.warm else nullcontext() as nest:
            while len(read(args.recordings).get(program.file, [])) < args.times:
                if time.monotonic() - start > args.minutes * 60:
                    return
                recording, seconds = program.record(nest=nest)
                told = said(program.judge(recording))
                found = read(args.recordings)
                found.setdefault(program.file, []).append(told)
                (args.recordings / FILE).write_text(json.dumps(found, indent=1) + "\n")
                print(f"{seconds:5.1f} s  {name}  {told}", flush=True)


if __name__ == "__main__":
    main()
