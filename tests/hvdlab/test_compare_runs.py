"""Real jobs through horovodrun: compared, kept, failing and interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvdlab.compare.job import Job
from hvdlab.compare.machine import cores
from hvdlab.compare.trial import Estimate, images_for

ROOT = Path(__file__).parents[2]
SOLUTION = ROOT / "scripts/solutions/fashion_mnist_torch.py"
LIMIT = 240


@pytest.mark.slow
def test_real_training_is_compared(bench, full_sets):
    folder = full_sets["fashion-mnist"].folder
    out, err, code = bench.run(
        SOLUTION, "--np", "1,2", "--epochs", 2, "--max-repeats", 1, "--", "--limit", 128,
        "--no-cuda", HVDLITE_DATA_DIR=str(folder),
    )  # fmt: skip
    assert code == 0, err
    for word in ("warm-up", "images/s", "speed-up", "efficiency", "2 processes x 1 thread"):
        assert word in out
    assert "2 processes x 1 thread, 2/2 epochs: 100%" in err
    assert (bench.folder / "results/compare.png").read_bytes().startswith(b"\x89PNG")
    runs = json.loads((bench.folder / "results/compare.json").read_text())["runs"]
    assert [run["processes"] for run in runs if not run["is_reference"]] == [1, 2]
    for run in runs:
        first = run["repeats"][0][0]
        assert first["is_warmup"] and first["images"] == 128
        assert first["processes"] == run["processes"] and first["threads"] == run["threads"]
        assert first["learning_rate"] == pytest.approx(0.02 * run["processes"])
        assert not first["is_sample"]


def test_done_runs_are_not_done_again(bench):
    arguments = (bench.script, "--np", "1,2", "--epochs", 3, "--max-repeats", 1)
    _, err, code = bench.run(*arguments)
    assert code == 0, err
    count = len(bench.ran())
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // 2)
    expected = {("1", str(share), "3"), ("2", str(share), "3")}
    expected |= {("1", str(cores), "3")} if cores > share else set()
    assert {tuple(job[:3]) for job in bench.ran()} == expected
    out, err, code = bench.run(*arguments)
    assert code == 0 and "steady" in out
    assert len(bench.ran()) == count, "nothing ran a second time"
    alone = (bench.script, "--np", 1, "--epochs", 3, "--max-repeats", 1)
    bench.run(*alone)
    count = len(bench.ran())
    bench.run(*alone, "--again")
    assert len(bench.ran()) == count + 1
    bench.script.write_text(bench.script.read_text() + "\n# changed\n")
    bench.run(*alone)
    assert len(bench.ran()) == count + 2
    bench.run(*alone, HOROVOD_FUSION_THRESHOLD="1024")
    assert len(bench.ran()) == count + 3


def test_open_questions_are_asked_again(bench):
    out, err, code = bench.run(bench.script, "--np", "1,2", "--epochs", 3, "--max-repeats", 2)
    assert code == 0, err
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))  # not the run with all cores
    sizes = [job[0] for job in bench.ran() if job[1] == share]
    assert sizes == ["1", "2", "1", "2"], "equal speeds: both runs are repeated once"
    assert "no conclusion" in out


def test_a_part_of_the_images_is_tried_out_and_then_trained_on_twice_in_turn(bench):
    arguments = (bench.script, "--np", "1,2", "--epochs", 2, "--minutes", 0.01)
    out, err, code = bench.run(*arguments)
    assert code == 0, err
    (share,) = {job[1] for job in bench.ran() if job[0] == "2"}
    trial, *jobs = [(job[0], job[2], job[4]) for job in bench.ran() if job[1] == share]
    assert trial == ("1", "1", "512")
    assert jobs == [("1", "2", "500"), ("2", "2", "500")] * 2, "the fewest, in so short a time"
    first = err.replace("\r", "\n").split("Comparing ")[1].splitlines()[0]
    assert "2 epochs of 500 images each, 2 times in turn; about" in first
    for title in ("1 process x", "2 processes x"):
        assert title in first
    assert "Each epoch had 500 images" in out
    count = len(bench.ran())
    _, err, _ = bench.run(*arguments)
    assert "Comparing" not in err and len(bench.ran()) == count, "the trial and all runs are there"


def test_images_for_a_time():
    jobs = [Job(Path("x.py"), count, 1, 3) for count in (1, 2)]
    estimate = Estimate(start=5.0, image=0.002)
    passes = 3 + 3 / min(2, cores())
    images = images_for(estimate, jobs, 100)
    assert images % 500 == 0
    assert sum(estimate.of_run(job, images) for job in jobs) <= 100
    assert sum(estimate.of_run(job, images + 500) for job in jobs) > 100
    assert images == int(90 / passes / 0.002) // 500 * 500
    assert images_for(estimate, jobs, 1) == 500 and images_for(estimate, jobs, 1e6) == 60_000


def test_a_script_that_fails_does_so_in_the_trial(bench):
    bench.script.write_text("raise SystemExit('no GPU here, not even for --limit')")
    _, err, code = bench.run(bench.script, "--np", "1,2", "--minutes", 2)
    assert code == 1 and "no GPU here" in err and "--limit=512" in err
    assert "Comparing" not in err and "Traceback" not in err


def test_a_script_without_limit_takes_as_long_as_it_takes(bench):
    bench.script.write_text("print('all of it')")
    _, err, code = bench.run(bench.script, "--minutes", 2)
    assert code == 1 and "takes no --limit" in err


def test_failing_job_tells_its_own_story(bench):
    out, err, code = bench.run(bench.script, "--np", "1,2", "--epochs", 1, "--", "--fail")
    assert code == 1
    assert "the job with 2 processes x" in err and "failed with exit code" in err
    assert "hvdrun -np 2" in err and str(bench.script) in err
    assert "rank 1 ran out of luck" in err
    assert "Traceback" not in err


def test_script_that_reports_nothing(bench):
    bench.script.write_text("print('I just print')")
    _, err, code = bench.run(bench.script, "--np", "1")
    assert code == 1 and "wrote no epochs.jsonl" in err and "I just print" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "there is no script nowhere.py"),
        (("quick.py", "--np", "two"), "--np takes numbers such as 1,2,4, not 'two'"),
        (("quick.py", "--np", "0,1"), "numbers from 1 on"),
        (("quick.py", "--epochs", "0"), "numbers from 1 on"),
        (("quick.py", "--minutes", "0"), "can't take 0.0 minutes"),
    ],
)
def test_mistakes_get_one_clear_message(bench, arguments, message):
    out, err, code = bench.run(*arguments)
    assert code == 1 and message in err and len(err.splitlines()) == 1 and out == ""


def test_progress_in_a_terminal(bench):
    terminal, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from hvdlab.cli import app; app()", "compare", bench.script,
         "--np", "1", "--epochs", "2", "--max-repeats", "1"],
        env=bench.environment, cwd=bench.folder, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # how Linux says that the other side has closed
        pass
    finally:
        os.close(terminal)
    assert process.wait(LIMIT) == 0
    assert b"0/2 epochs" in shown and b"2/2 epochs" in shown and b"100%" in shown


def test_in_a_notebook(bench, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)
    cell = (
        "from hvdlab.compare import compare\n"
        "result = compare('quick.py', np=[1], epochs=2, max_repeats=1)\n"
        "result.show()\n"
        "result.figure()"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    resources = {"metadata": {"path": str(bench.folder)}}
    NotebookClient(notebook, timeout=LIMIT, resources=resources).execute()
    outputs = notebook.cells[0].outputs
    text = "".join(one.get("text", "") for one in outputs)
    assert "2/2" in text and "Warning" not in text and "Traceback" not in text
    pictures = [one.data for one in outputs if one.output_type == "execute_result"]
    assert pictures and "Figure" in pictures[0]["text/plain"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_no_process(bench, how):
    process = bench.start(bench.script, "--np", "2", "--", "--sleep", 120)
    deadline = time.monotonic() + LIMIT
    while not bench.trace.exists() or not bench.trace.read_text().endswith("\n"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    assert any(int(job[3]) == one.pid for job in bench.ran() for one in family)
    process.send_signal(how)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
