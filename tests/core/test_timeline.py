"""The timeline is valid JSON, whatever happens, and tells what Horovod's tells."""

import json
import subprocess
import sys

import pytest
from mpi import environment, launch

TRAIN = """
import os, sys, signal
import numpy as np
import arrays as hvd
MODEL = (("weight", 6), ("bias", 2))
{before}
hvd.init()
for step in range({steps}):
    for call in [hvd.allreduce(np.ones(size), name=name) for name, size in MODEL]:
        call.wait()
    hvd.allreduce(np.ones(2), name='a "quoted" \\\\ name\\n of \u00fcnicode ' + str(step)).wait()
    hvd.allreduce(np.ones(300_000, np.float32), name="large").wait()
    hvd.allgather(np.ones(2)).wait()
    {inside}
print("trained", hvd.rank(), flush=True)
"""


def _train(path, steps=10, before="", inside="", **env):
    source = TRAIN.format(steps=steps, before=before, inside=inside)
    return launch(source, 2, env={"HOROVOD_TIMELINE": str(path), **env})


def _by_tensor(path) -> dict[str, list[dict]]:
    events = json.loads(path.read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found: dict[str, list[dict]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] != "M" and event["pid"] in names:
            found[names[event["pid"]]].append(event)
    return found


def test_each_tensor_has_its_story(tmp_path):
    path = tmp_path / "timeline.json"
    outcome = _train(path, HOROVOD_TIMELINE_MARK_CYCLES="1")
    assert outcome.returncode == 0, outcome
    story = _by_tensor(path)
    assert {"allreduce.weight", "allreduce.bias", "allreduce.large"} <= set(story)
    assert 'allreduce.a "quoted" \\ name\n of ünicode 7' in story
    for tensor, events in story.items():
        depth, last = 0, 0.0
        for event in events:
            depth += {"B": 1, "E": -1}.get(event["ph"], 0)
            assert depth >= 0, (tensor, event)
            if event["ph"] != "X":
                assert event["ts"] >= last
                last = event["ts"]
        assert depth == 0, tensor
    weight = [e["name"] for e in story["allreduce.weight"] if e["ph"] == "B"]
    # A small tensor is put where the others find it before the ranks have agreed on it.
    before = ["NEGOTIATE_ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER"]
    assert weight[:4] == [*before, "ALLREDUCE", "SHM_ALLREDUCE"]
    ticks = [e["name"] for e in story["allreduce.weight"] if e["ph"] == "X"]
    assert ticks[:2] == ["0", "1"]
    large = [e["name"] for e in story["allreduce.large"] if e["ph"] == "B"]
    assert "MEMCPY_IN_FUSION_BUFFER" in large
    assert "CYCLE_START" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]  # one file, not one a rank


@pytest.mark.parametrize("threshold", ["0", "1000000"])
def test_copies_are_shown_with_and_without_fusion(tmp_path, threshold):
    path = tmp_path / "timeline.json"
    before = "MODEL = [(f'tensor {n}', 100) for n in range(8)]"
    outcome = _train(path, before=before, HOROVOD_FUSION_THRESHOLD=threshold)
    assert outcome.returncode == 0, outcome
    story = _by_tensor(path)
    events = [event["name"] for n in range(8) for event in story[f"allreduce.tensor {n}"]]
    assert "MEMCPY_IN_FUSION_BUFFER" in events
    assert ("MEMCPY_OUT_FUSION_BUFFER" in events) == (threshold != "0")


def test_init_alone_and_the_variable_set_in_the_program(tmp_path):
    path = tmp_path / "timeline.json"
    assert _train(path, steps=0).returncode == 0
    assert json.loads(path.read_text()) == []
    other = tmp_path / "other.json"
    before = f"os.environ['HOROVOD_TIMELINE'] = {str(other)!r}"
    assert _train(path, steps=1, before=before).returncode == 0
    assert "allreduce.weight" in other.read_text()


def test_a_killed_rank_leaves_a_valid_file(tmp_path):
    path = tmp_path / "timeline.json"
    inside = "if step == 5 and hvd.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)"
    assert _train(path, inside=inside).returncode == 128 + 9
    assert json.loads(path.read_text())


@pytest.mark.parametrize("where", ["folder", "missing/file.json", "/dev/full"])
def test_a_place_that_cannot_be_written_is_told_once_and_training_goes_on(tmp_path, where):
    (tmp_path / "folder").mkdir()
    outcome = _train(tmp_path / where)
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("trained") == 2
    assert outcome.stderr.count("no timeline is written to") == 1, outcome


def test_started_and_stopped_twice(tmp_path):
    outcome = launch(
        f"""
import numpy as np
import arrays as hvd
hvd.init()
for name in ("one", "two"):
    hvd.start_timeline({str(tmp_path)!r} + f"/{{name}}.json")
    hvd.allreduce(np.ones(2), name=name).wait()
    hvd.stop_timeline()
    hvd.allreduce(np.ones(2), name="between").wait()
""",
        2,
    )
    assert outcome.returncode == 0, outcome
    assert set(_by_tensor(tmp_path / "one.json")) == {"allreduce.one"}
    assert set(_by_tensor(tmp_path / "two.json")) == {"allreduce.two"}


def test_a_full_disk_leaves_valid_json(tmp_path):
    """The limit of a file's size stands for the disk's end: a part of a write is still done."""
    path = tmp_path / "timeline.json"
    program = f"""
import resource, time
import numpy as np
import hvdlite
from hvdlite import calls

resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
hvdlite.init()
hvdlite.start_timeline({str(path)!r})
for i in range(60):
    calls.allreduce([np.ones(2)], [np.ones(2)], name=str(i)).wait()
    time.sleep(0.01)
hvdlite.shutdown()
print("trained")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "trained" in done.stdout, done.stderr
    assert done.stderr.count("no timeline is written to") == 1
    assert 1000 < path.stat().st_size <= 3000
    assert json.loads(path.read_text())
