"""Every ending: the right code, one last line, and nothing left (the fixture checks that)."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

RANK = "import os, sys, time; r = int(os.environ['OMPI_COMM_WORLD_RANK'])\n"
SLEEP = "time.sleep(3600)"
CHILD = "import subprocess; subprocess.Popen(['sleep', '3600'])\n"
STUBBORN = "import signal; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
MPI = "from mpi4py import MPI\n"


@pytest.mark.parametrize(
    "program, code, says",
    [
        (f"if r == 1: sys.exit(3)\n{SLEEP}", 3, "rank 1 exited with code 3; the other ranks"),
        (f"if r == 0: sys.exit(77)\n{SLEEP}", 77, "rank 0 exited with code 77"),
        (f"if r == 1: raise KeyError('x')\n{SLEEP}", 1, "rank 1 exited with code 1"),
        (f"if r == 1: os.kill(os.getpid(), 9)\n{SLEEP}", 137,
         "rank 1 was killed by signal 9 (SIGKILL); is the machine out of memory?"),
        (f"if r == 1: os.kill(os.getpid(), 11)\n{SLEEP}", 139, "killed by signal 11 (SIGSEGV)"),
        (f"{MPI}if r == 1: os.kill(os.getpid(), 9)\nMPI.COMM_WORLD.barrier()", 137, "rank 1 was"),
        (f"{MPI}if r == 1: MPI.COMM_WORLD.Abort(7)\n{SLEEP}", 7, "rank 1 exited with code 7"),
        (f"{MPI}{CHILD}{STUBBORN}if r == 1: MPI.COMM_WORLD.Abort(7)\n{SLEEP}", 7, "rank 1"),
        (f"{CHILD}if r == 1: sys.exit(3)\n{SLEEP}", 3, "rank 1 exited with code 3"),
    ],
)  # fmt: skip
def test_failing_rank_ends_the_job(horovodrun, program, code, says):
    result = horovodrun.python(2, RANK + program)
    assert result.returncode == code, result.err
    last = result.err.rstrip("\n").splitlines()[-1]
    assert last.startswith("horovodrun: ") and says in last
    assert "prterun" not in result.err and "-----" not in result.err  # mpirun's own banner


def test_traceback_of_the_failing_rank_is_shown(horovodrun):
    result = horovodrun.python(2, RANK + "if r == 1: raise KeyError('lost key')\n" + SLEEP)
    assert "[1,1]<stderr>:KeyError: 'lost key'\n" in result.err


def test_success_leaves_no_child_of_a_rank(horovodrun):
    result = horovodrun.python(2, CHILD + "print('ok')")
    assert (result.returncode, result.err) == (0, "")
    assert result.out.count("ok\n") == 2


@pytest.mark.parametrize("program", ["", CHILD, STUBBORN, MPI, MPI + STUBBORN + CHILD])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_job(horovodrun, number, program):
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(program))
    _wait_until_ready(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert f"horovodrun: stopped by {number.name}" in err.decode()


@pytest.mark.parametrize("program", ["", MPI + STUBBORN + CHILD])
def test_killed_launcher_takes_its_ranks_with_it(horovodrun, program):
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(program))
    _wait_until_ready(process)
    process.kill()
    process.communicate(timeout=30)


def _mpirun(launcher: subprocess.Popen) -> psutil.Process:
    """The launcher's child that is not its guard."""
    for child in psutil.Process(launcher.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # of those that come and go
            if "guard" not in " ".join(child.cmdline()):
                return child
    raise AssertionError("there is no mpirun")


def test_killed_mpirun(horovodrun):
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(STUBBORN + CHILD))
    _wait_until_ready(process)
    _mpirun(process).kill()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 137
    assert "mpirun was killed by signal 9 (SIGKILL)" in err.decode()


FILES = f"""{MPI}import os
MPI.COMM_WORLD.barrier()
with open("/proc/self/maps") as maps:
    files = {{line.split()[5] for line in maps if "/dev/shm/" in line}}
print(*files, os.environ["PMIX_SERVER_TMPDIR"])
"""


@pytest.mark.parametrize("victim", ["rank", "mpirun", "launcher"])
def test_a_kill_leaves_no_file_of_mpi(horovodrun, victim):
    """Neither shared memory nor the folder of mpirun's session."""
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(FILES))
    text = _wait_until_ready(process).decode()
    files = {word.rpartition(">:")[2] for word in text.split() if "/" in word}
    assert any("sm_segment" in name for name in files)
    assert all(os.path.exists(name) for name in files)
    mpirun = _mpirun(process)
    victims = {"rank": mpirun.children()[0], "mpirun": mpirun, "launcher": process}
    victims[victim].kill()
    process.communicate(timeout=30)
    end = time.monotonic() + 15
    while any(os.path.exists(name) for name in files) and time.monotonic() < end:
        time.sleep(0.1)
    assert [name for name in files if os.path.exists(name)] == []


def test_mpirun_that_does_not_react_is_killed(horovodrun):
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(CHILD))
    _wait_until_ready(process)
    _mpirun(process).suspend()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_second_interrupt_does_not_wait(horovodrun):
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(STUBBORN))
    _wait_until_ready(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_nohup_keeps_the_job(horovodrun):
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = horovodrun.start(
        "-np", 2, sys.executable, "-c", "import time; print('ready'); time.sleep(1); print('end')",
        preexec_fn=ignore,
    )  # fmt: skip
    text = _wait_until_ready(process)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and (text + out).count(b"end") == 2


def test_user_signal_reaches_the_ranks(horovodrun):
    program = "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(0))\n"
    process = horovodrun.start("-np", 2, sys.executable, "-c", _ready(program))
    _wait_until_ready(process)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_wrong_flag_for_mpirun_shows_what_mpirun_says(horovodrun):
    result = horovodrun("-np", 2, "--mpi-args=--no-such-flag", "true")
    assert result.returncode not in (0, 2)
    assert "no-such-flag" in result.err
    assert "no rank was started: mpirun ended with code" in result.err.splitlines()[-1]


def test_ranks_that_fail_together(horovodrun):
    """Open MPI may not say then which rank it was."""
    result = horovodrun.python(2, "raise SystemExit(6)")
    assert result.returncode == 6
    assert "exited with code 6" in result.err.splitlines()[-1]


def test_jobs_side_by_side(horovodrun):
    """Several launchers at once, each with its own code, do not disturb each other."""
    program = f"{MPI}{RANK}c = MPI.COMM_WORLD\nprint(c.allreduce(1))\nc.barrier()\nsys.exit(%d)"
    results = {}

    def run(code: int) -> None:
        results[code] = horovodrun.python(2, program % code)

    threads = [threading.Thread(target=run, args=(code,)) for code in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for code, result in results.items():
        assert result.returncode == code
        assert sorted(result.out.splitlines()) == ["[1,0]<stdout>:2", "[1,1]<stdout>:2"]


def _ready(program: str) -> str:
    return f"import time\n{program}\nprint('ready')\ntime.sleep(3600)"


def _wait_until_ready(process) -> bytes:
    text = b""
    while text.count(b"ready\n") < 2:
        block = os.read(process.stdout.fileno(), 1000)
        assert block, process.stderr.read().decode()
        text += block
    return text
