"""Sabotage and catch-up: texts that are changed, and what the command says."""

import ast
import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.check import CheckError
from hvdlab.check.catch_up import catch_up, halfway, up_to
from hvdlab.check.course import ALL, script_of
from hvdlab.check.mistakes import all_mistakes, fitting
from hvdlab.check.sabotage import hide, known_as, reveal

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)


def hvdlab(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", "from hvdlab.cli import app; app()", *map(str, arguments)],
        capture_output=True, text=True, timeout=240, cwd=cwd, env=environment(),
    )  # fmt: skip


def environment():
    from mpi import environment as of_ranks

    return of_ranks({"COLUMNS": "200"})


@SCRIPTS
def test_a_script_is_known_by_what_it_is_like(script):
    for path in (script.original, script.solution):
        assert script_of(script.lab, path) == script
        assert known_as(path) == script


@SCRIPTS
def test_sabotage_hides_one_mistake_and_reveals_it(script, tmp_path):
    target = tmp_path / "s.py"
    for seed in range(5):
        mistake = hide(script.solution, target, seed=seed)
        assert mistake in fitting(script, script.solution)
        assert ast.dump(ast.parse(target.read_text())) != ast.dump(
            ast.parse(script.solution.read_text())
        )
        assert reveal(target).startswith(f"{mistake.name}: {mistake.what}")
        assert mistake.what not in target.read_text()


def test_sabotage_says_what_does_not_fit(tmp_path):
    plain = ALL[0].original
    with pytest.raises(CheckError, match="no mistake 'no-broadcast' fits"):
        hide(plain, tmp_path / "s.py", "no-broadcast")
    with pytest.raises(CheckError, match="into another file"):
        hide(plain, plain)
    with pytest.raises(CheckError, match="nothing is known"):
        reveal(plain)


def test_every_mistake_fits_its_solutions():
    for script in ALL:
        names = {each.name for each in fitting(script, script.solution)}
        assert names == {each.name for each in all_mistakes() if script.name in each.edits}


@SCRIPTS
def test_every_halfway_script_is_python_and_the_last_is_the_solution(script):
    for number in range(1, 12):
        text = halfway(script, up_to(number))
        ast.parse(text)
        assert text.count("hvd.init()") == 1
    assert text == script.solution.read_text()
    with pytest.raises(CheckError, match="no step 12"):
        up_to(12)


@SCRIPTS
def test_catch_up_keeps_what_is_the_students_own(script):
    here = "    return parser.parse_args()\n"
    own = "    print('my own line')\n"
    mine = script.original.read_text().replace(here, own + here)
    for number in range(1, 12):
        text = catch_up(script, mine, up_to(number))
        assert text == halfway(script, up_to(number)).replace(here, own + here)
    assert text.replace(own, "") == script.solution.read_text()
    # Where both changed a line, the step wins, and the rest of the student's stays.
    mine = mine.replace("args.base_lr", "args.base_lr * 3")
    assert own in catch_up(script, mine, up_to(11))


def test_the_command_says_what_it_can_not_check(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    for arguments, message in (
        (["check", "05", "broken.py"], "broken.py is no valid Python"),
        (["check", "05", "nowhere.py"], "nowhere.py"),
        (["check", "03", "broken.py"], "lab 03 has no checks; there are 05, 06, 07"),
        (["check"], "name a lab"),
        (["check", "06"], "name your script"),
    ):
        done = hvdlab(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_folder_is_marked(tmp_path):
    """Two real scripts, end to end: one right, one with a deadlock; and one that is no Python."""
    folder = tmp_path / "submissions"
    for name in ("ann", "bob", "eve"):
        (folder / name).mkdir(parents=True)
    solution = ALL[3].solution
    (folder / "ann" / "mine.py").write_text(solution.read_text())
    hide(solution, folder / "bob" / "mine.py", "metrics-by-rank-0")
    (folder / "eve" / "mine.py").write_text("def f(:\n")
    done = hvdlab("check", "06", "--all", folder, "--out", tmp_path / "marks", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    with open(tmp_path / "marks" / "marks.csv") as file:
        rows = list(csv.DictReader(file))
    totals = {row["script"]: row for row in rows if row["step"] == "all"}
    assert totals["ann/mine.py"]["result"] == "done"
    assert totals["ann/mine.py"]["points"] == totals["ann/mine.py"]["of"]
    assert totals["bob/mine.py"]["seen"].startswith("deadlock")
    assert [r["step"] for r in rows if "bob" in r["script"] and r["result"] == "not right"] == [
        "metrics"
    ]
    assert totals["eve/mine.py"]["result"] == "not checked"
    page = (tmp_path / "marks" / "marks.html").read_text()
    assert "ann/mine.py" in page and "eve/mine.py" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_torch.py", "mnist_keras.py"])
def test_the_plain_script_has_no_step_done_and_says_so(name, tmp_path):
    script = next(each for each in ALL if each.name == name)
    done = hvdlab("check", script.lab, script.original, "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    results = {step["key"]: step["result"] for step in verdict["steps"]}
    assert not verdict["done"] and verdict["points"] <= 1
    assert results["init"] == results["optimizer"] == results["metrics"] == "open"
    assert results["rank0"] == "wrong"
