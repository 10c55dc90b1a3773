"""The trainer's board: a real server, real kernels, a real browser, and a class of forty."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import start_new_kernel
from playwright.sync_api import expect, sync_playwright

from hvdlab import handout
from hvdlab.board import room, send

ROOT = Path(__file__).resolve().parents[2]
STEP = "step 5: the same start"
PICTURES = os.environ.get("HVDLAB_SCREENSHOTS")  # a folder to put pictures of the pages into


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def verdict(name: str, result: str = "wrong", exercise: str = STEP, sentence: str = "no") -> dict:
    told = {"name": name, "lab": "06", "exercise": exercise}
    return {**told, "result": result, "sentence": sentence}


# What it knows


def test_three_failures_of_one_check_are_stuck_and_success_ends_it():
    here = room.Room(clock=Clock())
    for _ in range(2):
        here.take(verdict("Anna"))
    assert not here.students["Anna"].stuck()
    here.take(verdict("Anna"))
    ((lab, exercise, one),) = here.students["Anna"].stuck()
    assert (lab, exercise, one.failures) == ("06", STEP, 3)
    here.take(verdict("Anna", "done"))
    assert not here.students["Anna"].stuck()


def test_who_is_silent_and_who_is_done():
    clock = Clock()
    here = room.Room(600, clock)
    here.take(verdict("Anna"))
    for exercise in here.exercises("06"):
        here.take(verdict("Ben", "done", exercise))
    clock.now += 660
    assert here.silent(here.students["Anna"], "06") == 11
    assert here.silent(here.students["Ben"], "06") == 0


def test_the_commonest_mistake_counts_students_and_is_one_of_now():
    clock = Clock()
    here = room.Room(clock=clock)
    here.take(verdict("Old", sentence="rank 1 differs"))
    clock.now += room.NOW + 1
    for name, seen in (("A", "rank 1 differs by 0.5"), ("B", "rank 1 differs by 2.75"), ("C", "x")):
        here.take(verdict(name, sentence=seen))
        here.take(verdict(name, sentence=seen))
    first, second = here.mistakes()
    assert first.students == 2 and first.sentence.startswith("rank 1 differs by")
    assert second.students == 1
    assert [one.students for one in here.mistakes(at_least=2)] == [2]


def test_the_board_is_bounded_whatever_comes():
    clock = Clock()
    here = room.Room(clock=clock)
    for _ in range(room.PER_MINUTE):
        here.take(verdict("Anna"))
    with pytest.raises(OverflowError):
        here.take(verdict("Anna"))
    clock.now += 60
    here.take(verdict("Anna"))
    for n in range(room.MOST_EXERCISES + 60):
        clock.now += 2
        try:
            here.take(verdict("Anna", exercise=f"e{n}"))
        except OverflowError:
            pass
    assert len(here.students["Anna"].verdicts) == room.MOST_EXERCISES
    for n in range(room.MOST_STUDENTS - 1):
        clock.now += 1
        here.take(verdict(f"student {n}"))
    with pytest.raises(OverflowError, match="holds"):
        here.take(verdict("one more"))
    with pytest.raises(OverflowError):
        for n in range(room.PER_SECOND + 1):
            here.take(verdict(f"student {n % 190}"))


@pytest.mark.parametrize(
    "message",
    [[], "x", None, {}, {"name": 3}, {"name": "A", "result": "won"},
     {"name": " ", "result": "done"}, {"name": "A", "result": "done"},
     {"name": "A", "result": ["done"], "exercise": "x"}],
)  # fmt: skip
def test_what_is_no_message_is_refused(message):
    here = room.Room()
    with pytest.raises(ValueError):
        here.take(message)
    assert not here.students


def test_texts_are_one_short_line_without_control_characters():
    here = room.Room()
    here.take({**verdict("A\n\x00\u202eB" + 999 * "x", sentence="s" * 9999), "lab": "../"})
    (name,) = here.students
    assert name.startswith("A B") and len(name) == 40
    ((lab, _),) = here.students[name].verdicts
    assert lab == "" and len(here.students[name].verdicts[lab, STEP].sentence) == 200


# The server


class Board:
    """A running `hvdlab board`, and what it has told."""

    def __init__(self, env: dict[str, str], *options: str):
        self.job = subprocess.Popen(
            [sys.executable, "-m", "hvdlab", "board", "--port", "0", *options],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        lines = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(self.job.stdout.readline())
            assert lines[-1], "".join(lines)
        self.told = "".join(lines)
        self.page = re.search(r"page: +(\S+)", self.told)[1]
        self.projector = re.search(r"Projector: +(\S+)", self.told)[1]
        self.join = re.search(r"hvdlab join (\S+)", self.told)[1]

    def read(self, where: str = "") -> str:
        with urllib.request.urlopen(where or self.page, timeout=60) as answer:
            return answer.read().decode()

    def wait_for(self, text: str, where: str = "") -> str:
        end = time.monotonic() + 120
        while text not in (page := self.read(where)):
            assert time.monotonic() < end, page
            time.sleep(0.2)
        return page

    def end(self) -> int:
        self.job.send_signal(signal.SIGINT)
        try:
            return self.job.wait(60)
        finally:
            self.job.kill()
            self.job.stdout.close()


@pytest.fixture
def env(tmp_path, monkeypatch):
    """The environment of a user without settings."""
    for name in (send.ADDRESS, send.NAME, "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return dict(os.environ)


@pytest.fixture
def board(env):
    board = Board(env)
    yield board
    assert board.end() == 0


def hvdlab(env: dict[str, str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hvdlab", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


CHECK = """
from hvdlab.exercise import Check
with Check({name!r}) as check:
    check.that({right}, "the same start on all ranks: weight 0.5 of Model()", "secret_variable = 3")
"""


def run_check(env: dict[str, str], folder: Path, right: bool = False, name: str = STEP) -> str:
    code = CHECK.format(name=name, right=right)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_a_student_joins_and_only_then_something_is_sent(board, env, tmp_path):
    lab = tmp_path / "06_pytorch"
    lab.mkdir()
    run_check(env, lab)
    assert "Nobody has joined yet" in board.read()
    done = hvdlab(env, "join", board.join, "--name", "<b>Anna</b>", cwd=tmp_path)
    assert done.returncode == 0 and "go to the board as <b>Anna</b>" in done.stdout
    told = run_check(env, lab)
    page = board.wait_for("the same start on all ranks")
    assert "&lt;b&gt;Anna" in page and "<b>Anna" not in page
    assert "secret_variable" in told and "secret" not in page and "Model()" not in page
    assert "Anna" not in board.read(board.projector)
    assert hvdlab(env, "join", "--leave", cwd=tmp_path).returncode == 0
    run_check({**env, send.ADDRESS: board.join}, lab, name="later")  # the student's word counts
    assert "later" not in board.read()


def test_a_hub_joins_by_a_variable(board, env, tmp_path):
    run_check({**env, send.ADDRESS: board.join, "JUPYTERHUB_USER": "ben"}, tmp_path, right=True)
    board.wait_for("ben")


def test_a_browser_is_told_what_the_students_address_is_for(board):
    told = board.read(f"{board.join}?a=1&b=2")
    assert f"hvdlab join {board.join}\n" in told and "a=1" not in told


def test_tokens_are_needed_and_stay_the_same(board, env, tmp_path):
    address, _, token = board.join.rpartition("/")
    trainer = board.page.partition("token=")[2]
    for wrong in (f"{address}/", f"{address}/?token={token}", f"{address}/projector?token=é"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            board.read(wrong.replace("é", "%C3%A9"))
    for key in ("x", trainer):
        with pytest.raises(send.Refused, match="not the board's token"):
            send.send({"address": f"{address}/{key}"}, verdict("Eve"))
    hvdlab(env, "join", board.join, "--name", "Anna", cwd=tmp_path)
    kept = send.settings()
    refused = hvdlab(env, "join", f"{address}/x", cwd=tmp_path)
    assert refused.returncode == 1 and "nothing is sent there" in refused.stderr
    assert kept["address"] == board.join and send.settings() == kept
    again = Board(env)
    assert again.join.endswith(token) and again.page.endswith(trainer)
    assert again.end() == 0
    again = Board(env, "--new-tokens")
    assert not again.join.endswith(token) and not again.page.endswith(trainer)
    assert again.end() == 0


def test_it_listens_on_this_machine_alone_unless_told_otherwise(board):
    found = psutil.Process(board.job.pid).net_connections("tcp")
    assert {one.laddr.ip for one in found if one.status == "LISTEN"} == {"127.0.0.1"}
    assert "--host 0.0.0.0 opens it" in board.told


def test_a_message_that_is_too_long_is_refused_and_the_board_goes_on(board):
    address, _, token = board.join.rpartition("/")
    for body in (b"x" * 100_000, b"[" * 4000, b"\xff", b"{}"):
        request = urllib.request.Request(
            f"{address}/verdict", body, {"Authorization": f"token {token}"}
        )
        with pytest.raises((urllib.error.HTTPError, OSError)) as told:
            urllib.request.urlopen(request, timeout=60)
        assert getattr(told.value, "code", 400) < 500
    assert "Nobody has joined yet" in board.read()


def test_a_board_that_is_down_disturbs_nobody(env, tmp_path):
    with socket.socket() as deaf:  # takes connections and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        port = deaf.getsockname()[1]
        for address in (f"http://127.0.0.1:{port}/token", "http://127.0.0.1:9/token"):
            done = hvdlab(env, "join", address, "--name", "Anna", cwd=tmp_path)
            assert "does not answer now" in done.stdout and done.returncode == 0
            assert "not right yet" in run_check(env, tmp_path)
    for nonsense in ("nonsense", "http://x", "ftp://x/y"):
        done = hvdlab(env, "join", nonsense, cwd=tmp_path)
        assert done.returncode == 1 and "is no board" in done.stderr


def test_verdicts_wait_for_a_board_that_comes_back(board, env, tmp_path, monkeypatch):
    monkeypatch.setattr(send, "AGAIN", 0.5)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        send.keep(address=f"http://127.0.0.1:{probe.getsockname()[1]}/token", name="Lena")
    send.report(STEP, "wrong", "while it was down")
    time.sleep(1)
    send.keep(address=board.join)
    board.wait_for("while it was down")


def test_a_shared_folder_needs_no_port(env, tmp_path):
    folder = tmp_path / "board"
    board = Board(env, "--folder", str(folder))
    try:
        assert board.join == str(folder) and folder.stat().st_mode & 0o7777 == 0o1733
        done = hvdlab(env, "join", board.join, "--name", "Anna", cwd=tmp_path)
        assert "as Anna" in done.stdout and done.returncode == 0
        (tmp_path / "secret").write_text(json.dumps(verdict("Mallory")) + "\n")
        (folder / "link.jsonl").symlink_to(tmp_path / "secret")
        os.mkfifo(folder / "pipe.jsonl")
        (folder / "long.jsonl").write_text("x" * 50_000 + "\n" + json.dumps(verdict("Late")) + "\n")
        (folder / "half.jsonl").write_text(json.dumps(verdict("Half")))
        run_check(env, tmp_path)
        board.wait_for("the same start on all ranks")
        page = board.wait_for("Late")
        assert "Mallory" not in page and "Half" not in page
        (mine,) = [path for path in folder.glob("*.jsonl") if len(path.stem) == 32]
        assert mine.stat().st_mode & 0o777 == 0o644
    finally:
        assert board.end() == 0


def test_a_port_in_use_is_told_in_a_line(board, env, tmp_path):
    port = board.page.rpartition(":")[2].partition("/")[0]
    done = hvdlab(env, "board", "--port", port, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"no board at 127.0.0.1:{port}" in done.stderr


# A class


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forty_students_in_a_browser(board, env, tmp_path):
    """Four of them are real kernels in the labs' folder, the rest recorded verdicts."""
    handout.write(tmp_path / "course")
    exercises = room.Room().exercises("06")
    kernels = []

    def recorded(number: int) -> None:
        known = {"address": board.join}
        name = f"student {number:02}"
        said = [verdict(name, "done", each, "") for each in exercises[: 1 + number % 12]]
        if number % 3 == 0:
            said += [verdict(name, sentence="both ranks begin alike")] * (1 + number % 4)
        for message in [{"name": name, "result": "joined"}, *said]:
            while True:
                try:
                    send.send(known, message)
                    break
                except send.Refused:
                    raise
                except OSError:  # it is busy
                    time.sleep(0.5)

    try:
        for number in range(4):
            told = {send.ADDRESS: board.join, send.NAME: f"kernel {number}"}
            kernels.append(
                start_new_kernel(
                    env={**env, **told},
                    cwd=str(tmp_path / "course/labs/06_pytorch"),
                    startup_timeout=120,
                )  # fmt: skip
            )
        threads = [threading.Thread(target=recorded, args=(n,)) for n in range(36)]
        for thread in threads:
            thread.start()
        for number, (_, client) in enumerate(kernels):
            for _ in range(number + 1):
                code = CHECK.format(name=STEP, right=number == 0)
                assert client.execute_interactive(code, timeout=120, output_hook=lambda message: 0)
        for thread in threads:
            thread.join()
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        assert chromium, "no chromium: apt-get install chromium"
        with sync_playwright() as playwright:
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            browser = playwright.chromium.launch(executable_path=chromium, args=options)
            look_at(browser, board)
            browser.close()
    finally:
        for manager, client in kernels:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def look_at(browser, board: Board) -> None:
    page, complaints = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(board.page)
    expect(page.locator("h1")).to_contain_text("40 students", timeout=120_000)
    expect(page.locator("tbody tr")).to_have_count(40)
    stuck = page.locator("ul").nth(1)
    for name in ("kernel 2", "kernel 3", "student 03"):
        expect(stuck).to_contain_text(name, timeout=60_000)
    assert "kernel 1" not in stuck.inner_text()
    # What comes later is seen without a reload, and is text whatever it looks like.
    trick = "<img src=x onerror=alert(1)>"
    send.send({"address": board.join}, verdict(trick, sentence="<script>alert(2)</script>"))
    expect(page.locator("main")).to_contain_text(trick, timeout=60_000)
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES, "board.png")), full_page=True)
    projector = browser.new_page(viewport={"width": 1280, "height": 900})
    projector.goto(board.projector)
    expect(projector.locator("h1")).to_have_text("41 students")
    expect(projector.locator("main")).to_contain_text("both ranks begin alike")
    assert "student 0" not in projector.content() and "kernel" not in projector.content()
    assert trick not in projector.locator("main").inner_text()
    if PICTURES:
        projector.screenshot(path=str(Path(PICTURES, "projector.png")))
    assert complaints == []
