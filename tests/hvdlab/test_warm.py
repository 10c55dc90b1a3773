"""The process whose forks are the ranks: what an interrupt does to it and to them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from hvdlab.warm import Nest

RANK = """\
import pathlib, time
try:
    pathlib.Path("begun").touch()
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A short path for the socket, in it a rank's program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(RANK)
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_an_interrupt_is_for_the_ranks_and_the_nest_says_nothing(place, capfd):
    with Nest((), place, dict(os.environ)) as nest:
        rank = subprocess.Popen([*nest.python, "rank.py"], stdout=subprocess.PIPE, text=True)
        try:
            process = psutil.Process(nest._process.pid)
            while not Path("begun").exists():
                assert nest.is_up and rank.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            process.children()[0].send_signal(signal.SIGINT)  # as to all of a terminal
            assert rank.communicate(timeout=60)[0] == "interrupted\n" and rank.returncode == 0
        finally:
            rank.kill()
        again = subprocess.run([*nest.python, "-m", "this"], capture_output=True, timeout=60)
        assert again.returncode == 0 and b"Zen" in again.stdout
    assert not process.is_running()
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_ends_the_imports(place, tmp_path, monkeypatch, capfd):
    imports = "import os, time; open('importing', 'w').write(str(os.getpid())); time.sleep(600)"
    (tmp_path / "slow.py").write_text(imports)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    interrupt = (
        "import os, pathlib, signal, time\n"
        "while not (path := pathlib.Path('importing')).exists() or not path.read_text():\n"
        "    time.sleep(0.02)\n"
        "os.kill(int(path.read_text()), signal.SIGINT)"
    )
    helper = subprocess.Popen([sys.executable, "-c", interrupt])
    with pytest.raises(RuntimeError, match="no process with slow"):
        Nest(("slow",), place, dict(os.environ))
    assert helper.wait(60) == 0
    assert capfd.readouterr() == ("", "")
