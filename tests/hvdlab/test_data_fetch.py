"""Fetching: each file once, whole or not at all, whatever happens in the middle."""

import hashlib
import signal
import time

import pytest

from hvdlab import data

FASHION = data.SETS["fashion-mnist"]
IMAGES = FASHION.files["train_images"].name
LIMIT = 120


def full(full_sets, name="fashion-mnist"):
    """What a process prints that has loaded the whole set."""
    images = bytes(full_sets[name].contents["train_images"])[16:]
    return f"{hashlib.sha256(images).hexdigest()} 60000 False\n"


def cached(lab, name="fashion-mnist"):
    """The names in the cache, without the lock file."""
    return sorted(path.name for path in (lab.cache / name).glob("*") if path.name != ".lock")


def wait_for(event, process):
    """Wait until the event is set; the time limit only ends a hang."""
    deadline = time.monotonic() + LIMIT
    while not event.wait(0.02):
        assert process.poll() is None, "the process ended before"
        assert time.monotonic() < deadline, "it never happened"


@pytest.mark.parametrize("name", data.SETS)
def test_fetched_once_then_offline(lab, mirror, full_sets, name):
    out, err, code = lab.finish(lab.load(name))
    assert (out, code) == (full(full_sets, name), 0), err
    assert "100%" in err, "no progress bar"
    assert len(mirror.requests) == 4
    assert cached(lab, name) == sorted(file.name for file in FASHION.files.values())
    out, err, code = lab.finish(lab.load(name, HVDLITE_DATA_SOURCES="cache"))
    assert (out, err, code) == (full(full_sets, name), "", 0)
    assert len(mirror.requests) == 4


def test_many_at_once_download_once(lab, mirror, full_sets):
    mirror.gate.clear()
    processes = [lab.load() for _ in range(4)]
    wait_for(mirror.half_sent, processes[0])
    lab.wait_until_waiting(processes, 3)
    mirror.gate.set()
    results = [lab.finish(process) for process in processes]
    assert {(out, code) for out, _, code in results} == {(full(full_sets), 0)}
    assert len(mirror.requests) == 4
    holders = [process.pid for process in processes]
    waiting = [err for _, err, _ in results if "waiting for process" in err]
    assert len(waiting) == 3
    assert all(any(f"process {pid} on" in err for pid in holders) for err in waiting)


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_damaged_file_is_named_and_fetched_again(lab, mirror, full_sets, damage):
    lab.finish(lab.load())
    mirror.requests.clear()
    path = lab.cache / "fashion-mnist" / IMAGES
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[1000:]
    else:
        content[-1] ^= 1
    path.write_bytes(content)
    out, err, _ = lab.finish(lab.load())
    assert out == full(full_sets)
    assert str(path) in err and damage in err
    assert mirror.requests == [f"/fashion-mnist/{IMAGES}.gz"]


def test_killed_in_the_middle_leaves_nothing_that_counts(lab, mirror, full_sets):
    mirror.gate.clear()
    first = lab.load()
    wait_for(mirror.half_sent, first)
    waiting = lab.load()
    lab.wait_until_waiting([waiting], 1)
    first.send_signal(signal.SIGKILL)
    first.wait(LIMIT)
    assert IMAGES not in cached(lab)
    mirror.gate.set()
    out, err, code = lab.finish(waiting)  # the lock fell to this one
    assert (out, code) == (full(full_sets), 0), err
    assert cached(lab) == sorted(file.name for file in FASHION.files.values())


def test_failure_reaches_all_who_wait(lab, mirror):
    mirror.files.clear()
    mirror.gate.clear()
    text = 'from hvdlab import data; data.load("mnist", sample_ok=False)'
    processes = [lab.start("-c", text) for _ in range(3)]
    lab.wait_until_waiting(processes, 2)
    mirror.gate.set()
    for process in processes:
        _, err, code = lab.finish(process)
        assert code == 1
        assert "DataError" in err and "answers 404" in err
    assert len(mirror.requests) == 1, "one process asked, the others took its word"
    mirror.files["/mnist/train-images-idx3-ubyte.gz"] = b"late"
    _, err, code = lab.finish(lab.hvdlab("data", "mnist", "--require-full"))
    assert code == 1 and len(mirror.requests) == 2, "the command itself always tries again"


@pytest.mark.parametrize("fault", ["cut", "half", "wrong", "no gzip"])
def test_bad_answer_of_a_mirror_is_refused(lab, mirror, fault):
    path = f"/fashion-mnist/{IMAGES}.gz"
    if fault == "cut":  # fewer bytes than promised
        mirror.cut.add(path)
    elif fault == "half":  # as many as promised, but half of the file
        mirror.files[path] = mirror.files[path][: len(mirror.files[path]) // 2]
    elif fault == "wrong":  # the file of that name of the other set
        mirror.files[path] = mirror.files[path.replace("fashion-mnist", "mnist", 1)]
    else:
        mirror.files[path] = b"<html>log in first</html>"
    out, err, code = lab.finish(lab.load())
    assert code == 0 and out.endswith("400 True\n")
    expected = {
        "cut": "broke off",
        "half": "truncated",
        "wrong": "belongs to",
        "no gzip": "damaged",
    }
    assert expected[fault] in err
    assert cached(lab) == [".last-failure.json"]


def test_mirror_that_is_not_there(lab):
    _, err, _ = lab.finish(lab.load(HVDLITE_DATA_MIRROR="http://127.0.0.1:9"))
    assert "your mirror: 127.0.0.1:9 cannot be reached" in err
    assert "Traceback" not in err
    _, err, _ = lab.finish(lab.load("mnist", HVDLITE_DATA_MIRROR="http://mirror.invalid"))
    assert "your mirror: mirror.invalid cannot be reached" in err


@pytest.mark.parametrize("who", ["the one that fetches", "the one that waits"])
def test_interrupt(lab, mirror, who):
    mirror.gate.clear()
    first = lab.hvdlab("data", "fashion-mnist")
    wait_for(mirror.half_sent, first)
    stopped = first
    if who == "the one that waits":
        stopped = lab.hvdlab("data", "fashion-mnist")
        lab.wait_until_waiting([stopped], 1)
    stopped.send_signal(signal.SIGINT)
    _, err, code = lab.finish(stopped)
    assert code == 130, err
    assert "interrupted" in err and "Traceback" not in err
    if stopped is first:
        assert cached(lab) == []


def test_cache_that_cannot_be_written(lab, tmp_path):
    (tmp_path / "file").write_text("in the way")
    out, err, code = lab.finish(lab.load(XDG_CACHE_HOME=str(tmp_path / "file")))
    assert code == 0 and out.endswith("400 True\n")
    assert "can't be used" in err and "XDG_CACHE_HOME" in err
