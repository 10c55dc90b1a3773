"""Output: nothing lost, every line tagged, no two ranks in one line, shown at once."""

import os
import re
import subprocess
import sys
import time

import pytest

from hvdrun.output import Sink, Stream

WRITE = "import os, sys, time; w = os.write; r = os.environ['OMPI_COMM_WORLD_RANK'].encode()\n"
PROGRAMS = {
    "bar": "b = '\\r%d |\\u2588\\u258f\\u258c| %d/3000'\n"
    "for i in range(3000): w(2, (b % (int(r), i + 1)).encode())",
    "two writes": "w(1, b'caf\\xc3'); time.sleep(0.4); w(1, b'\\xa9\\n')",
    "raw bytes": "w(1, b'\\xff\\xfe\\x00 raw\\x80\\n'); w(2, b'\\xed\\xa0\\x80')",
    "long line": "b = r * (5 << 20) + b'\\n'\nwhile b: b = b[w(1, b):]",
    "no newline": "w(1, b'one\\ntwo ' + r); w(2, b'three')",
    "many lines": "for i in range(5000): print('line', i); print('error', i, file=sys.stderr)",
}


def reassemble(text: bytes, rank: int, name: str) -> bytes:
    tag = re.escape(f"[1,{rank}]<{name}>:".encode())
    return b"".join(re.findall(tag + rb"([^\r\n]*[\r\n])", text))


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_nothing_is_lost_and_lines_are_not_mixed(horovodrun, tmp_path, program, locale):
    result = horovodrun.python(
        2, WRITE + program, "--output-filename", tmp_path / "o",
        env={"LC_ALL": locale, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert result.returncode == 0, result.err
    for rank in (0, 1):
        for name in ("stdout", "stderr"):
            raw = (tmp_path / f"o/rank.{rank}/{name}").read_bytes()
            got = reassemble(getattr(result, f"{name}_bytes"), rank, name)
            if b"\r" in raw or b"caf" in raw:  # a piece that comes late may be cut in two
                got, raw = got.translate(None, b"\r\n"), raw.translate(None, b"\r\n")
            # A carriage return before the first text and a newline after the last are no text.
            assert got.rstrip(b"\n") == raw.lstrip(b"\r").rstrip(b"\n")
    for text in (result.stdout_bytes, result.stderr_bytes):
        for line in text.splitlines():
            assert re.match(rb"\[1,[01]\]<std(out|err)>:", line) and line.count(b"[1,") == 1


def test_result_is_the_same_without_a_folder(horovodrun):
    result = horovodrun.python(2, WRITE + PROGRAMS["many lines"])
    for rank in (0, 1):
        expected = b"".join(b"line %d\n" % i for i in range(5000))
        assert reassemble(result.stdout_bytes, rank, "stdout") == expected


def test_names_of_copies_sort_well(horovodrun, tmp_path):
    result = horovodrun("-np", 11, "--output-filename", tmp_path / "o", "echo", "hello")
    assert result.returncode == 0, result.err
    assert sorted(os.listdir(tmp_path / "o")) == [f"rank.{rank:02}" for rank in range(11)]
    assert (tmp_path / "o/rank.10/stdout").read_text() == "hello\n"


@pytest.mark.parametrize("end", [r"\n", ""])
def test_output_appears_while_the_job_runs(horovodrun, end):
    """An unflushed print, with and without a newline, is there before the program goes on."""
    program = f"import sys, time; print('first', end='{end}'); time.sleep(3600)"
    process = horovodrun.start("-np", 2, sys.executable, "-c", program)
    text = b""
    while text.count(b"first") < 2:
        text += os.read(process.stdout.fileno(), 1000)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + 15


def test_reader_that_leaves_does_not_change_the_result(horovodrun):
    program = (
        WRITE
        + "for i in range(20000): print('x' * 100)\nsys.exit(4) if r == b'1' else time.sleep(3600)"
    )
    process = horovodrun.start("-np", 2, sys.executable, "-c", program)
    process.stdout.read(10)
    process.stdout.close()
    assert b"rank 1 exited with code 4" in process.stderr.read()
    assert process.wait(30) == 4


def test_reader_that_waits_does_not_stop_the_end(horovodrun):
    """Nobody reads the full pipe, and Ctrl-C still ends the job."""
    process = horovodrun.start("-np", 2, "sh", "-c", "while echo yes; do :; done")
    assert process.stdout.read(3)
    time.sleep(0.5)  # the pipe is full now
    process.send_signal(2)
    assert process.wait(30) == 130
    process.stdout.close()
    process.stderr.close()


def test_both_streams_in_one_pipe_stay_apart(horovodrun):
    program = WRITE + "for i in range(300): w(1, b'out '); w(2, b'err\\n'); w(1, b'end\\n')"
    result = horovodrun.python(2, program, stderr=subprocess.STDOUT)
    for line in result.stdout_bytes.splitlines():
        assert re.fullmatch(rb"\[1,[01]\]<stdout>:out end|\[1,[01]\]<stderr>:err", line)


def test_timestamps(horovodrun):
    result = horovodrun("-np", 1, "--prefix-output-with-timestamp", "echo", "hello")
    assert re.fullmatch(
        r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[1,0\]<stdout>:hello\n", result.out
    )


@pytest.fixture
def sink():
    read, write = os.pipe()
    sink = Sink(write)
    os.set_blocking(read, False)
    sink.text = lambda: os.read(read, 1 << 16)
    yield sink
    os.close(read)
    os.close(write)


def streams(sink: Sink) -> list[Stream]:
    return [Stream(b"%d:" % rank, sink) for rank in (0, 1)]


def test_open_line_is_continued_by_its_rank_and_ended_by_another(sink):
    first, second = streams(sink)
    first.feed(b"Epoch 1 ")
    first.show_pending(at_end=True)
    first.feed(b"done\nEpoch 2 ")
    first.show_pending(at_end=True)
    second.feed(b"hello\n")
    first.feed(b"done\n")
    assert sink.text() == b"0:Epoch 1 done\n0:Epoch 2 \n1:hello\n0:done\n"


def test_letter_in_the_making_is_held_back(sink, monkeypatch):
    first, _ = streams(sink)
    letters = "aé█😀".encode()
    monkeypatch.setattr("hvdrun.output._HELD_SECONDS", {False: 0, True: 0})
    shown = b""
    for i in range(len(letters)):
        first.feed(letters[i : i + 1])
        first.show_pending()
        try:
            shown += sink.text()
        except BlockingIOError:
            continue
        shown.decode()  # no half letter was shown
    assert shown == b"0:" + letters


def test_windows_newlines_and_bars_of_two_ranks(sink):
    first, second = streams(sink)
    first.feed(b"one\r\ntwo\r")
    first.feed(b"\nthree\r")
    second.feed(b"\r10%\r20%")
    second.feed(b"\n")
    assert sink.text() == b"0:one\r\n0:two\r\n0:three\r\n1:10%\r1:20%\n"
