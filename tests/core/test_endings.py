"""How a job ends when a rank ends: soon, with one clear message, and nothing left behind."""

import contextlib

import psutil
import pytest
from mpi import launch

START = """
import os, signal, sys, time
import numpy as np
import arrays as hvd
hvd.init()
rank = hvd.rank()
print("pid", os.getpid(), flush=True)
hvd.allreduce(np.ones(2)).wait()
"""


def _run(body: str, np: int = 2, env: dict[str, str] | None = None):
    outcome = launch(START + body, np, env=env)
    pids = [int(line.split()[1]) for line in outcome.stdout.splitlines() if line.startswith("pid")]
    assert len(pids) == np, outcome
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive, outcome
    return outcome


@pytest.mark.parametrize("np", [2, 3])
def test_an_uncaught_error_ends_all_ranks(np):
    outcome = _run(
        """
if rank == 1:
    raise KeyError("no such layer")
hvd.allreduce(np.ones(2), name="gradient").wait()
""",
        np,
    )
    assert outcome.returncode == 1, outcome
    assert "KeyError: 'no such layer'" in outcome.stderr, outcome
    assert "allreduce 'gradient' can't finish: rank 1 ended with KeyError" in outcome.stderr


def test_an_error_also_ends_ranks_that_never_ask():
    outcome = _run(
        """
if rank == 1:
    raise KeyError("no such layer")
while True:
    time.sleep(1)
"""
    )
    assert outcome.returncode == 1, outcome
    assert "KeyError: 'no such layer'" in outcome.stderr, outcome


def test_an_interrupt_while_a_failed_rank_waits_for_the_others_ends_the_job_too():
    outcome = _run(
        """
import threading
if rank == 1:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    raise KeyError("no such layer")
time.sleep(600)
"""
    )
    assert outcome.returncode == 1, outcome


def test_a_program_may_show_its_errors_itself():
    outcome = _run(
        """
sys.excepthook = lambda kind, error, trace: print("my own words:", error, file=sys.stderr)
if rank == 1:
    raise KeyError("no such layer")
hvd.allreduce(np.ones(2), name="gradient").wait()
"""
    )
    assert outcome.returncode == 1, outcome
    assert "my own words: 'no such layer'" in outcome.stderr, outcome
    assert "allreduce 'gradient' can't finish: rank 1 ended with KeyError" in outcome.stderr


@pytest.mark.parametrize("others", ["time.sleep(600)", "hvd.barrier()"])
def test_the_exit_code_of_sys_exit_is_the_jobs(others):
    outcome = _run(
        f"""
if rank == 1:
    sys.exit(3)
{others}
"""
    )
    assert outcome.returncode == 3, outcome
    if others == "hvd.barrier()":
        assert "can't finish: rank 1 has left by sys.exit(3)" in outcome.stderr, outcome


def test_a_killed_rank_ends_the_job():
    outcome = _run(
        """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.allreduce(np.ones(2)).wait()
"""
    )
    assert outcome.returncode == 128 + 9, outcome


def test_a_rank_that_ends_early_is_named():
    outcome = _run(
        """
if rank == 0:
    hvd.allreduce(np.ones(2), name="one too many").wait()
"""
    )
    assert outcome.returncode == 1, outcome
    assert "allreduce 'one too many' can't finish: rank 1 has ended its program" in outcome.stderr
    assert "early stopping" in outcome.stderr


def test_an_interrupt_ends_a_wait_on_all_ranks_and_they_can_go_on():
    outcome = _run(
        """
import threading
def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
caught = "nothing"
try:
    if rank == 0:
        threading.Thread(target=interrupt).start()
        hvd.allreduce(np.ones(2), name="stuck").wait()
    else:
        hvd.broadcast(np.ones(2), 0, name="other").wait()
except KeyboardInterrupt:
    caught = "interrupt"
except hvd.HorovodInternalError as error:
    caught = str(error)
hvd.shutdown()
hvd.init()
total = hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0].item()
print(f"rank {rank} caught {caught} and then got {total}", flush=True)
"""
    )
    assert outcome.returncode == 0, outcome
    assert "rank 0 caught interrupt and then got 2.0" in outcome.stdout, outcome
    assert "rank 1 caught rank 0 was interrupted in allreduce 'stuck' at" in outcome.stdout, outcome
    assert "program.py" in outcome.stdout and "hvd.init() on every rank" in outcome.stdout


def test_many_new_starts_in_one_process():
    outcome = _run(
        """
for i in range(50):
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(np.ones(3), op=hvd.Sum).wait()[0] == 2
print("held", len(os.listdir("/proc/self/fd")), flush=True)
"""
    )
    assert outcome.returncode == 0, outcome
    held = [int(line.split()[1]) for line in outcome.stdout.splitlines() if "held" in line]
    assert max(held) < 200, outcome


def test_a_long_wait_does_not_use_the_core():
    outcome = _run(
        """
if rank == 1:
    time.sleep(3)
before = time.process_time()
hvd.allreduce(np.ones(2)).wait()
print("busy", time.process_time() - before, flush=True)
"""
    )
    busy = [float(line.split()[1]) for line in outcome.stdout.splitlines() if "busy" in line]
    assert max(busy) < 1.0, outcome  # processor time of rank 0's wait of 3 s
