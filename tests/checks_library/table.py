"""Proves the check on the whole library, and writes the table of docs/checks.md.

    PYTHONPATH=tests python -m checks_library.table RECORDINGS --minutes 10 --doc docs/checks.md

Each program is really run. Its recording is kept in RECORDINGS, so that the work can be done in
turns, and judged anew without another run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from checks_library import library, load, repeat, save
from hvdlab.check.course import STEP
from hvdlab.check.run import IMPORTS, warm
from hvdlab.check.verdict import UNSEEN
from hvdlab.warm import Nest

BY_HAND = "<!-- What follows is written by hand. -->\n"


def document(folder: Path) -> Iterator[str]:
    """The lines of docs/checks.md, from the recordings in a folder."""
    found = [
        (each, *load(folder / each.file)) for each in library() if (folder / each.file).exists()
    ]
    rows, good = [], {True: 0, False: 0}
    count = {True: 0, False: 0}
    for program, recording, _ in found:
        verdict = program.judge(recording)
        right = not program.breaks
        count[right] += 1
        good[right] += program.is_as_expected(verdict)
        failing = ", ".join(verdict.failing()) or ("passes" if verdict.done else "not passed")
        unseen = sum(step.result == UNSEEN for step in verdict.steps)
        wanted = ", ".join(program.breaks) or "passes"
        sign = "" if program.is_as_expected(verdict) else " **differs**"
        seen = next((verdict[k].seen for k in program.breaks if k in verdict.failing()), "")
        if len(seen) > 160:
            seen = seen[:157] + "..."
        rows.append(
            f"| {program.script.name.removesuffix('.py')} | {program.what} | {wanted} | "
            f"{failing}{sign} | {unseen or ''} | {seen.replace('|', '/')} |"
        )
    yield "# What the checks find"
    yield ""
    yield "Every program in the table was run on two ranks, and judged by what they did."
    yield "The table is made by `PYTHONPATH=tests python -m checks_library.table`; the recordings"
    yield "of all runs are in `tests/check/recordings`, where the tests judge them anew."
    yield ""
    yield f"- programs of the library that were run so far: {len(found)} of {len(library())}"
    yield (
        f"- wrong programs that fail at their own step and no other: {good[False]} of "
        f"{count[False]}"
    )
    yield f"- right programs, in several styles, that pass: {good[True]} of {count[True]}"
    yield ""
    yield "Steps: " + "; ".join(f"{key}: {step.title}" for key, step in STEP.items()) + "."
    yield "*Unseen* counts the steps that could not be judged, since the program had ended before."
    yield ""
    yield "| script | what is wrong, or which style | breaks | found | unseen | evidence |"
    yield "|---|---|---|---|---|---|"
    yield from rows
    yield from repeat.lines(folder)


def main() -> None:
    """Run what has no recording yet, then write the table."""
    parser = argparse.ArgumentParser(description="Prove the check on the library of programs.")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after these")
    parser.add_argument("--only", default="", help="names that hold one of these, with commas")
    parser.add_argument("--doc", type=Path, help="the file to write the table to")
    parser.add_argument("--warm", action="store_true", help="one import of each framework for all")
    args = parser.parse_args()
    args.recordings.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    nests: dict[tuple[str, ...], Nest | None] = {}
    with ExitStack() as stack:
        for program in library():
            path = args.recordings / program.file
            wanted = any(part in program.file for part in args.only.split(","))
            if path.exists() or not wanted or time.monotonic() - start > args.minutes * 60:
                continue
            modules = IMPORTS[program.script.framework] if args.warm else ()
            if modules not in nests:
                nests[modules] = stack.enter_context(warm(*modules)) if modules else None
            recording, seconds = program.record(nest=nests[modules])
            save(path, recording, seconds)
            verdict = program.judge(recording)
            sign = "as expected" if program.is_as_expected(verdict) else "DIFFERS"
            print(f"{seconds:5.1f} s  {sign:11}  {program.file}  {verdict.failing()} "
                  f"{verdict.ended}", flush=True)  # fmt: skip
    if args.doc:
        before = args.doc.read_text() if args.doc.exists() else ""
        _, mark, rest = before.partition(BY_HAND)
        args.doc.write_text("\n".join(document(args.recordings)) + f"\n\n{mark or BY_HAND}{rest}")


if __name__ == "__main__":
    main()
