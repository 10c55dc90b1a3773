"""Scripts that loop, flood, fill, write elsewhere, hang or leave something behind."""

import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from hvdlab.check.confine import landlock_version
from hvdlab.check.course import ALL
from hvdlab.check.judge import judge
from hvdlab.check.run import observe, warm
from hvdlab.check.verdict import UNSEEN

SCRIPT = ALL[3]
START = "import horovod.torch as hvd\nhvd.init()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where this test's checks put their folders; short, since sockets lie in it.

    pytest makes `tmp_path` before, in the usual place.
    """
    with tempfile.TemporaryDirectory(prefix="hc") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield made


def left_behind():
    """Processes of this test's checks."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            seen = process.environ()
            if "HVDLAB_CHECK" in seen and seen["TMPDIR"].startswith(tempfile.gettempdir()):
                found.append(process)
    return found


def launchers_folders() -> set[Path]:
    """Folders of launchers, but for those of jobs that go on, which are other tests'."""
    used = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            used.update(process.environ().values())
    return {path for path in Path("/dev/shm").glob("hvd-*") if str(path) not in used}


@pytest.fixture
def run(tmp_path):
    """Observe a program given as text; nothing of it may be left."""

    def observed(text, limit=60.0, **options):
        script = tmp_path / "hostile.py"
        script.write_text(text)
        before = launchers_folders()
        recording = observe(script, [[]], limit, **options)
        assert left_behind() == []
        left, end = launchers_folders() - before, time.monotonic() + 20
        while left and time.monotonic() < end:  # other tests' launchers begin and end meanwhile
            time.sleep(0.2)
            left &= launchers_folders()
        assert left == set(), "the launcher's files are left"
        return recording

    return observed


def ended(recording):
    text = judge(SCRIPT, "hostile.py", recording).ended
    assert "\n" not in text
    return text


def test_an_endless_loop_is_stopped(run):
    recording = run("while True:\n    pass\n", limit=6)
    assert "still running after 6 s" in ended(recording)
    # It has not trained without init(); it may only be slow.
    assert judge(SCRIPT, "hostile.py", recording)["init"].result == UNSEEN


@pytest.fixture
def reference(tmp_path):
    """A right script that takes so many seconds at least, to be run by `observe`."""

    def takes(seconds):
        script = tmp_path / "reference" / "right.py"
        script.parent.mkdir()
        script.write_text(f"import time\ntime.sleep({seconds})\n")
        return lambda given_up: observe(script, [[]], given_up=given_up)

    return takes


@pytest.mark.parametrize("does", ["time.sleep(10_000)", "while True: pass"])
def test_a_silent_script_is_ended_before_its_time_and_says_where_it_is(
    run, reference, monkeypatch, does
):
    monkeypatch.setattr("hvdlab.check.run.SILENCE_S", 3.0)
    script = START + f"import time\nif hvd.rank() == 1:\n    {does}\n"
    text = ended(run(script, 200.0, reference=reference(0)))
    assert text.startswith("stopped: nothing happened for ") and "; a right script takes" in text
    assert "rank 0 had come to the end of the script" in text
    assert "rank 1 was in hostile.py, line 5, and had done nothing else for" in text


def test_the_right_script_ends_with_the_other_one(run, reference, monkeypatch):
    """Nobody waits for it; by itself it would go on until its own limit."""
    monkeypatch.setattr("hvdlab.check.run.SILENCE_S", 2.0)
    slow, recordings = reference(10_000), []

    def right(given_up):
        recordings.append(slow(given_up))
        return recordings[-1]

    recording = run(START + "import time\ntime.sleep(6)\n", 200.0, reference=right)
    assert not recording.stopped
    assert [each.stopped for each in recordings] == ["it was given up"]


def test_a_silent_script_is_not_ended_while_a_right_one_is_as_slow(run, reference, monkeypatch):
    """However busy the machine is, the script's 7 s are less than three times what that takes."""
    monkeypatch.setattr("hvdlab.check.run.SILENCE_S", 2.0)
    recording = run(START + "import time\ntime.sleep(7)\nprint('done')\n", reference=reference(5))
    assert recording.printed == [["done"]] * 2 and not recording.stopped


@pytest.mark.parametrize(
    "does, seen",
    [
        ("print(n, flush=True)", True),
        ("open(f'f{n}', 'w').write('x')", True),
        ("__import__(f'helper_{n}')", True),
        ("pass", False),
    ],
)
def test_a_slow_script_is_ended_only_if_nothing_happens_in_it(
    run, reference, monkeypatch, tmp_path, does, seen
):
    monkeypatch.setattr("hvdlab.check.run.SILENCE_S", 6.0)
    right = reference(0)(None)  # is there at once, so that the silence alone decides
    for n in range(16):
        (tmp_path / f"helper_{n}.py").touch()
    text = f"import time\nfor n in range(16):\n    {does}\n    time.sleep(0.6)\nprint('done')\n"
    recording = run(START + text, reference=lambda given_up: right)
    assert bool(recording.stopped) is not seen
    assert all(("done" in lines) is seen for lines in recording.printed)


def test_a_flood_of_output_is_stopped(run):
    recording = run("while True:\n    print('x' * 1000)\n")
    assert "printed more than 2 MB" in ended(recording)


def test_a_script_that_fills_memory_is_stopped(run, monkeypatch):
    monkeypatch.setattr("hvdlab.check.run.MEMORY_MB", 700)
    text = ended(run("kept = []\nwhile True:\n    kept.append(bytearray(64 << 20))\n"))
    assert "MemoryError" in text or "memory" in text


def test_a_huge_file_is_stopped(run):
    text = "with open('big', 'wb') as f:\n    while True:\n        f.write(bytes(1 << 22))\n"
    assert "File too large" in ended(run(text))


def test_many_files_are_stopped(run, monkeypatch):
    monkeypatch.setattr("hvdlab.check.run.DISK_MB", 40)
    text = (
        "import itertools, time\nfor n in itertools.count():\n"
        "    open(f'f{n}', 'wb').write(bytes([1]) * (4 << 20))\n    time.sleep(0.1)\n"
    )
    assert "wrote more than 40 MB" in ended(run(text))


def test_what_is_not_the_scripts_own_is_out_of_reach(run, tmp_path, monkeypatch):
    """Files elsewhere, the network, the instructor's variables; its own folder is a copy."""
    monkeypatch.setenv("SECRET_TOKEN", "of the instructor")
    mine = tmp_path / "mine.txt"
    mine.write_text("as it was")
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    text = (
        "import os, socket, subprocess, helper\n"
        f"target = {str(mine)!r}\n"
        "for act in (lambda: open(target, 'w'), lambda: os.remove(target),\n"
        "            lambda: os.rename(target, target + '2'),\n"
        "            lambda: socket.create_connection(('192.0.2.1', 80), timeout=5)):\n"
        "    try:\n        act()\n        print('did it')\n"
        "    except OSError as error:\n        print('refused')\n"
        # A program of its own has no Python hooks; the kernel refuses.
        "subprocess.run(['rm', '-f', target])\n"
        "open('helper.py', 'w').write('')\n"
        "open('inside.txt', 'w').write('allowed')\n"
        "print(helper.VALUE, os.environ.get('SECRET_TOKEN'))\n"
    )
    recording = run(text)
    assert mine.read_text() == "as it was"
    assert (tmp_path / "helper.py").read_text() == "VALUE = 3\n"
    assert recording.printed == [["refused"] * 4 + ["3 None"]] * 2
    assert recording.files == [["work/inside.txt"]] * 2
    verdict = judge(SCRIPT, "hostile.py", recording)
    assert any(f"rank 1 tried to change {mine}" in line for line in verdict.outside)
    assert any("rank 0 tried to reach 192.0.2.1" in line for line in verdict.outside)


def test_hundreds_of_forks_are_stopped(run):
    text = (
        "import os, time\n"
        "for _ in range(300):\n    if os.fork() == 0:\n        time.sleep(600)\n"
        "        os._exit(0)\ntime.sleep(600)\n"
    )
    assert "started more than 64 processes" in ended(run(text))


@pytest.mark.parametrize("is_warm", [False, True])
def test_memory_for_all_and_other_processes_are_out_of_reach(tmp_path, is_warm):
    """/dev/shm, what other processes have in their environment, and signals to them."""
    environment = {**os.environ, "SECRET_TOKEN": "of the instructor"}
    other = subprocess.Popen(["sleep", "600"], env=environment)
    mine = Path("/dev/shm", f"mine-{os.getpid()}")
    text = (
        "import os, signal, subprocess\n"
        f"subprocess.run(['touch', {str(mine)!r}], stderr=subprocess.DEVNULL)\n"
        f"try:\n    print(open('/proc/{other.pid}/environ', 'rb').read())\n"
        "except OSError:\n    print('refused')\n"
        f"for other in {[other.pid, os.getpid()] if landlock_version() >= 6 else []}:\n"
        "    try:\n        os.kill(other, signal.SIGTERM)\n"
        "    except OSError:\n        print('refused')\n"
    )
    (tmp_path / "hostile.py").write_text(text)
    try:
        with warm("numpy") if is_warm else contextlib.nullcontext() as nest:
            recording = observe(tmp_path / "hostile.py", [[]], nest=nest)
        assert not mine.exists() and other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert {line for printed in recording.printed for line in printed} == {"refused"}
    assert not recording.stopped


def test_a_daemon_is_not_left_and_a_silent_exit_is_told(run):
    text = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
        "    os._exit(0)\n"
        "os._exit(0)\n"
    )
    assert "ended without a word" in ended(run(text))


def test_a_deadlock_says_who_waits_where(run):
    text = (
        START + "import torch\nif hvd.rank() == 0:\n    hvd.allreduce(torch.ones(1), name='loss')\n"
        "else:\n    hvd.broadcast(torch.ones(3), 0, name='weights')\n"
    )
    text = ended(run(text))
    assert text.startswith("deadlock: ")  # proven, and not given up after some time
    assert "rank 0 waited in allreduce 'loss' (hostile.py, line 5)" in text
    assert "rank 1 waited in broadcast 'weights' (hostile.py, line 7)" in text


def test_a_rank_that_leaves_frees_the_other(run):
    text = START + "import torch\nif hvd.rank() == 0:\n    hvd.allreduce(torch.ones(1), name='x')\n"
    text = ended(run(text))
    # Rank 0 learns of it by an error, or is still waiting when the run ends.
    assert "allreduce 'x'" in text and "rank 1 ha" in text
    assert "time" not in text  # it was not the limit that ended it


def test_an_error_is_told_with_its_line(run):
    assert ended(run("x = 1\n\n1 / 0\n")) == (
        "rank 0 failed: ZeroDivisionError: division by zero (hostile.py, line 3)"
    )


def test_a_fork_of_a_warm_process_is_confined_and_ends_with_its_check(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("as it was")
    loops = "import subprocess\n" + f"subprocess.run(['rm', '-f', {str(mine)!r}])\n"
    (tmp_path / "loops.py").write_text(loops + "print('here')\nwhile True:\n    pass\n")
    (tmp_path / "ends.py").write_text("print(1 + 1)\n")
    with warm("numpy") as nest:
        looped = observe(tmp_path / "loops.py", [[]], limit=12, nest=nest)
        assert "still running" in looped.stopped and looped.printed == [["here"]] * 2
        ended = observe(tmp_path / "ends.py", [[]], nest=nest)
        assert ended.printed == [["2"]] * 2 and not ended.stopped
        assert len(left_behind()) == 1  # the warm process itself
    assert mine.read_text() == "as it was" and left_behind() == []
