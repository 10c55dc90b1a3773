"""hvdlite.run: results in rank order, output, errors, interrupts, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hvdlite

_factor = 10


def test_results_in_rank_order(capsys):
    offset = 3

    class Box:
        def __init__(self, value):
            self.value = value

    def work(plus, times=1):
        import hvdlite.torch as hvd

        hvd.init()
        print("hello from", hvd.rank(), flush=True)
        total = hvd.allreduce(__import__("torch").ones(1), op=hvd.Sum).item()
        return Box(hvd.rank() * _factor * times + offset + plus), total

    results = hvdlite.run(work, args=(1,), kwargs={"times": 2}, np=2)
    assert [box.value for box, _ in results] == [4, 24]
    assert [total for _, total in results] == [2, 2]
    out = capsys.readouterr().out
    assert "[1,0]<stdout>:hello from 0" in out and "[1,1]<stdout>:hello from 1" in out
    import horovod

    assert horovod.run is hvdlite.run


def test_a_large_result_and_a_function_without_hvdlite():
    lengths = [len(result) for result in hvdlite.run(lambda: b"x" * 50_000_000, np=2)]
    assert lengths == [50_000_000] * 2


def test_the_failing_ranks_traceback_is_shown(ranks_left):
    def fails():
        import hvdlite.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("no such layer")
        hvd.barrier()

    with pytest.raises(RuntimeError, match="rank 1 of 2:(.|\n)*KeyError: 'no such layer'"):
        hvdlite.run(fails, np=2)
    assert hvdlite.run(lambda: "again", np=2) == ["again"] * 2
    assert ranks_left() == []


@pytest.mark.parametrize("with_hvdlite", [True, False])
@pytest.mark.parametrize(
    "leave, code, says",
    [
        ("sys.exit('no GPU here')", 1, "SystemExit: no GPU here"),
        ("sys.exit(3)", 3, "SystemExit: 3"),
        ("sys.exit(0)", 1, "SystemExit: 0"),
        ("raise KeyboardInterrupt", "(1|130)", "KeyboardInterrupt"),
    ],
)
def test_a_rank_that_leaves_gives_no_result(ranks_left, leave, code, says, with_hvdlite):
    def leaves():
        import sys  # noqa: F401

        from mpi4py import MPI

        if with_hvdlite:
            import hvdlite

            hvdlite.init()
        if MPI.COMM_WORLD.rank == 1:
            exec(leave)

    with pytest.raises(RuntimeError, match=f"exit code {code}\n(.|\n)*rank 1 of 2:(.|\n)*{says}"):
        hvdlite.run(leaves, np=2)
    assert ranks_left() == []


def test_what_cannot_travel_is_named():
    lock = threading.Lock()

    def guarded():
        with lock:
            return 1

    with pytest.raises(TypeError, match="guarded can't be sent to the ranks: lock can't be"):
        hvdlite.run(guarded, np=2)
    with pytest.raises(TypeError, match=r"args\[1\]"):
        hvdlite.run(lambda a, b: a, args=(1, lock), np=2)


PROGRAM = """
import hvdlite, os, sys, time

def stuck():
    import hvdlite.torch as hvd
    hvd.init()
    print("started", flush=True)
    if hvd.rank() == 0:
        hvd.barrier()
    time.sleep(600)

try:
    hvdlite.run(stuck, np=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(hvdlite.run(lambda: 7, np=2), flush=True)
"""


def test_an_interrupt_ends_all_ranks_and_the_next_run_works(tmp_path: Path, ranks_left):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=env
    )
    for _ in range(2):
        assert "started" in process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert "interrupted" in rest and "[7, 7]" in rest
    assert process.returncode == 0
    assert ranks_left() == []


def test_the_first_results_of_an_elastic_job():
    hosts = {"min_np": 1, "host_discovery_script": "echo localhost:2"}
    assert hvdlite.run(lambda: 1, np=2, **hosts) == [1]
    with pytest.raises(Exception, match="host-discovery-script ./none: No such"):
        hvdlite.run(lambda: 1, np=2, host_discovery_script="./none")
