"""`hvdlab check`: one script, a folder of scripts, or one from outside of the course."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from ..board import report
from . import advise as examine
from . import check
from .catch_up import catch_up as merged
from .catch_up import difference, halfway, up_to
from .course import CheckError, find, script_of
from .many import check_many
from .mistakes import fitting
from .sabotage import hide, known_as
from .sabotage import reveal as revealed
from .show import page, show, to_csv
from .verdict import DONE, OPEN, WRONG, Verdict


def run(lab: str, script: Path | None, as_json: bool, limit: float, table: bool = False) -> bool:
    """Check one script and show the verdict; whether every step is done.

    Raises CheckError where there is nothing to check.
    """
    with _a_word():
        verdict = check(lab, script, limit)
    wrong = [f"step {s.number}, {s.title}" for s in verdict.steps if s.result in (OPEN, WRONG)]
    sentence = ", ".join(wrong[:1]) or ("" if verdict.done else "the script did not end well")
    result = "done" if verdict.done else "wrong"
    report(f"hvdlab check {verdict.version_of}", result, sentence, lab.zfill(2))
    return _tell(verdict, as_json, table)


def advise(script: Path, as_json: bool, limit: float, table: bool = False) -> bool:
    """The same for a script from outside of the course.

    Raises CheckError if it is no Python.
    """
    with _a_word():
        verdict = examine(script, limit)
    return _tell(verdict, as_json, table)


def _tell(verdict: Verdict, as_json: bool, table: bool) -> bool:
    print(verdict.to_json()) if as_json else show(verdict, table)
    return verdict.done


def _a_word() -> AbstractContextManager:
    words, errors = "running it on 2 ranks and watching what they do", Console(stderr=True)
    if "JPY_PARENT_PID" in os.environ:  # a cell of a notebook: it can't take back what it shows
        errors.print(f"{words} ...", highlight=False)
        return nullcontext()
    return errors.status(words)


def mark(lab: str, folder: Path, out: Path, as_json: bool, limit: float) -> bool:
    """Check every script below a folder; writes marks.csv and marks.html into `out`.

    Returns whether all scripts are done. Raises CheckError if there are no scripts.
    """
    scripts = sorted(path for path in folder.rglob("*.py") if path.is_file())
    if not scripts:
        raise CheckError(f"no Python files in {folder}")
    verdicts: list[Verdict] = []
    failed: dict[str, str] = {}
    for path, found in check_many(lab, scripts, limit):
        name = str(path.relative_to(folder))
        if isinstance(found, Verdict):
            found.script = name
            verdicts.append(found)
        else:
            failed[name] = str(found)
    verdicts.sort(key=lambda each: each.script)
    out.mkdir(parents=True, exist_ok=True)
    (out / "marks.csv").write_text(to_csv(verdicts, failed))
    (out / "marks.html").write_text(page(verdicts, failed))
    if as_json:
        print(json.dumps([json.loads(each.to_json()) for each in verdicts], indent=2))
    else:
        for each in verdicts:
            print(f"{each.points:3} of {each.of}  {each.script}  {', '.join(each.failing())}")
        for name, why in failed.items():
            print(f"  not checked  {name}: {why}")
        print(f"tables: {out / 'marks.csv'} and {out / 'marks.html'}")
    return not failed and all(each.done for each in verdicts)


def sabotage(
    script: Path, name: str | None, only_list: bool, reveal: bool, out: Path | None
) -> None:
    """Hide a mistake, list what fits, or reveal what was hidden.

    Raises CheckError if no mistake fits or none is known.
    """
    if reveal:
        print(revealed(script))
    elif only_list:
        for each in fitting(known_as(script), script):
            print(f"{each.name:22} {each.what}")
    else:
        target = out or script.with_name(f"sabotaged_{script.name}")
        hide(script, target, name)
        print(
            f"{target} has a mistake now. Run it on 2 ranks: what is odd, and which rank does it?"
        )
        print(f"The answer: hvdlab sabotage --reveal {target}")


def catch_up(lab: str, script: Path | None, step: int, write: bool, from_start: bool) -> None:
    """Bring a script to a step: show the difference, and with `write` change the file.

    Raises CheckError where that can't be done.
    """
    path = script if script is not None else find(lab)
    known, steps, before = script_of(lab, path), up_to(step), path.read_text()
    if from_start:
        after = halfway(known, steps)
    else:
        with _a_word():
            verdict = check(lab, path)
        done = {each.number for each in verdict.steps if each.result == DONE}
        after = merged(known, before, steps - done)
        kept = ", ".join(map(str, sorted(done))) or "none"
        print(f"done already, and kept: {kept}")
    change = difference(before, after, path.name)
    if not change:
        print(f"{path} has steps 1 to {step}; nothing to change")
        return
    coloured = Syntax("", "diff", background_color="default").highlight(change)
    Console().print(coloured, soft_wrap=True)  # a diff that is cut off is none
    if write:
        path.with_suffix(".before.py").write_text(before)
        path.write_text(after)
        print(f"{path} is changed; what it was is in {path.with_suffix('.before.py')}")
    else:
        print("Add --write to change the file.")
