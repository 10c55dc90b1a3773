"""A rehearsal of a small lab: what it measures, what it finds, and what it leaves behind."""

import fnmatch
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from typer.testing import CliRunner

from hvdlab import builder, handout, watchdog
from hvdlab.cli import app
from hvdlab.rehearse import SCHEDULES, Run, rehearse
from hvdlab.rehearse.command import _advice
from hvdlab.rehearse.watch import MARK, Watch

LAB = """\
# %% [markdown]
# # Lab 07: Small
#
# You will be able to
#
# - see.
#
# **Time**: 1 minutes.
#
# **Before** you begin: nothing.
#
# **Without a GPU**: nothing changes.

# %%
import socket, subprocess, sys, time
from pathlib import Path
from hvdlab.exercise import Check

# %% [markdown] exercise="sum"
# ## Exercise: a sum
# goal: Add one number and another.
# minutes: 3
# difficulty: 1
# importance: core

# %% solution="sum"
total = None
### BEGIN SOLUTION
total = {total}
### END SOLUTION

# %% check="sum" points=1
with Check("a sum") as check:
    check.that(check.value(total) == 5, "it is 5")

# %% [markdown] exercise="more"
# ## Exercise: more
# goal: Add more, who has time for it.
# minutes: 9
# difficulty: 1
# importance: extra

# %% solution="more"
more = None
### BEGIN SOLUTION
more = 1
### END SOLUTION

# %% check="more" points=1
with Check("more") as check:
    check.that(check.value(more) == 1, "it is 1")

# %%
{code}

# %% [markdown]
# ## Summary
"""
# What the programs of a lab leave in the home of whoever runs them; with a file, what they fetch.
CACHES = """\
import sys
from pathlib import Path
import keras, matplotlib.pyplot, torch
from torch.utils import cpp_extension
from hvdlab import data
from hvdlab.compare import cache
from hvdlab.data.fetch import cache_folder
from hvdlab.data.files import write_whole
cache.store("timing", [{"seconds": 1.0}])
assert data.load("mnist", sources=["mirror"]).is_sample  # the failure is noted in its folder
write_whole(Path(cpp_extension.get_default_build_root(), "kernel.so"), b"compiled")
if sys.argv[1:]:
    there = Path(sys.argv[1]).resolve().as_uri()
    keras.utils.get_file("images.npz", there)
    torch.hub.load_state_dict_from_url(there, file_name="weights.pt")
    write_whole(cache_folder(data.SETS["mnist"]) / "train-images-idx3-ubyte", b"images")
"""
COSTS = """\
server = socket.create_server(("127.0.0.1", 0))
print("noise", file=sys.__stderr__, flush=True)
subprocess.run("echo more >&2", shell=True)
Path("result").write_bytes(bytes(3 << 20))
time.sleep(4)"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Writes the lab; the home is an empty one."""
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(handout, "source", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(total: str = "2 + 3", code: str = "pass") -> None:
        path = tmp_path / "labs" / "07_small" / "lab.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LAB.format(total=total, code=code))
        path.with_name("07_small.ipynb").write_text(
            builder.write(builder.student(builder.read(path)))
        )

    return write


def test_it_says_what_a_lab_costs(course, tmp_path):
    course(code=COSTS)
    solved, unsolved = rehearse(["07"], 2, tmp_path / "out")
    assert (solved.solved, unsolved.solved) == (True, False)
    for run in (solved, unsolved):
        assert run.problems == []
        assert (run.promised, run.cards) == (1, 3)
        assert run.waited >= run.longest[0] >= 4 and run.longest[1] == "Exercise: more"
        assert run.seen.processes >= 2 and run.seen.memory > 20 << 20
        assert run.seen.ports >= 2 and run.seen.disk >= 3 << 20
        assert not run.seen.fetched
        assert [log.read_text() for log in run.logs] == ["noise\nmore\n"] * 2
    assert [log.name for log in solved.logs] == ["07_small-solved-1.log", "07_small-solved-2.log"]
    kept = nbformat.read(tmp_path / "out/07_small-unsolved-1.ipynb", 4)
    assert any("iopub.execute_input" in cell.metadata.get("execution", {}) for cell in kept.cells)


def test_what_fails_and_what_is_left_is_found(course, tmp_path):
    course(total="6", code="subprocess.Popen(['sleep', '600'], start_new_session=True)")
    solved, unsolved = rehearse(["07"], 1, tmp_path / "out")
    assert any("1 processes were left" in problem for problem in solved.problems)
    assert any("a sum: not right yet" in problem for problem in solved.problems)
    assert not any("a sum" in problem for problem in unsolved.problems)
    assert MARK not in os.environ
    course(code="raise KeyError('gone')")
    solved, unsolved = rehearse(["07"], 1, tmp_path / "out")
    for run in (solved, unsolved):
        assert any("KeyError: 'gone'" in problem for problem in run.problems)


@pytest.mark.parametrize("moment", ["a kernel starts", "a cell runs"])
def test_an_interrupt_ends_all_of_it(course, tmp_path, moment):
    course(code="Path.home().joinpath('begun').touch()\ntime.sleep(600)")
    before = set(psutil.Process().children(recursive=True))

    def has_come() -> bool:
        if moment == "a cell runs":
            return (tmp_path / "home" / "begun").exists()
        return bool(set(psutil.Process().children(recursive=True)) - before)

    def interrupt() -> None:
        while not has_come():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        list(rehearse(["07"], 2, tmp_path / "out"))
    assert set(psutil.Process().children(recursive=True)) <= before


def test_the_command_writes_a_page_and_says_what_to_do(course, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("hvdlab.rehearse.command.examine", list)
    course(code="'<b>'")
    done = CliRunner().invoke(app, ["rehearse", "07", "--out", "out"], env={"COLUMNS": "300"})
    assert done.exit_code == 1 and "lab 07 promises 1 minutes" in done.output, done.output
    page = (tmp_path / "out/rehearsal.html").read_text()
    assert len(re.findall("<tr>", page)) == 3 and "promises 1 minutes" in page
    assert "<b>" not in page and ".log" not in page and not list(tmp_path.glob("out/*.log"))
    course(code="print('noise', file=sys.__stderr__, flush=True)")
    capfd.readouterr()
    done = CliRunner().invoke(app, ["rehearse", "07", "--out", "out"], env={"COLUMNS": "80"})
    assert max(map(len, done.output.splitlines())) <= 80
    assert "noise" not in done.output + "".join(capfd.readouterr())
    assert "<a href='07_small-solved-1.log'>" in (tmp_path / "out/rehearsal.html").read_text()
    done = CliRunner().invoke(app, ["rehearse", "12"])
    assert done.exit_code == 1 and "there is no lab 12" in done.output


def test_only_what_comes_from_elsewhere_was_fetched(course, tmp_path, monkeypatch):
    for name in ("KERAS_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    torch.save({}, tmp_path / "weights")
    (tmp_path / "program.py").write_text(CACHES)

    def fetched(*arguments: str) -> set[str]:
        with Watch(str(tmp_path)) as seen:
            subprocess.run([sys.executable, "program.py", *arguments], check=True, timeout=120)
        return {str(Path(path).relative_to(tmp_path / "home")) for path in seen.fetched}

    assert fetched() == set()
    home = {str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*")}
    for made in ("hvdlite/compare/timing.json", "matplotlib/*", "torch_extensions/*kernel.so"):
        assert fnmatch.filter(home, f"cache/{made}")
    assert ".keras/keras.json" in home and "cache/hvdlite/data/mnist/.last-failure.json" in home
    assert fetched("weights") == {
        ".keras/datasets/images.npz",
        "cache/torch/hub/checkpoints/weights.pt",
        "cache/hvdlite/data/mnist/train-images-idx3-ubyte",
    }


def test_what_was_fetched_is_told_by_its_largest_file():
    run = Run("07", True, 9, 3)
    run.seen.fetched = {"/a/labels": 0, "/b/images": 3 << 20}
    run.seen.asked.add("192.0.2.1")
    fetched, asked = _advice([run], 1)
    assert fetched.startswith("3.0 MiB were fetched, such as /b/images")
    assert "the labs asked 192.0.2.1" in asked


def test_schedules_name_labs_that_exist():
    known = {path.parent.name[:2] for path in (handout.source() / "labs").glob("*/lab.py")}
    assert all(set(numbers) <= known for numbers in SCHEDULES.values())
    assert not watchdog.processes("nowhere", MARK)
