"""`%%px` on the engines of hvdlab, from a real kernel: ranks, errors, interrupts, restarts."""

import contextlib
import json
import re
import tempfile
from pathlib import Path

import psutil
import pytest
from labs.notebook import Notebook, gone, wait_until

from hvdlab.watchdog import processes

START = "from hvdlab import engines\nranks = engines.start(2)\nprint(ranks)"


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    told = notebook.run(START)
    assert re.search(r"^ +0 +\S+ +\d+ +0\n +1 +\S+ +\d+ +1", told, re.MULTILINE), told
    notebook.run("%%px\nfrom mpi4py import MPI\nimport numpy as np\ncomm = MPI.COMM_WORLD")
    yield notebook
    notebook.close()


def still_works(notebook: Notebook) -> bool:
    told = notebook.run("%%px\nprint('sum', comm.allreduce(comm.rank + 1))")
    return "[rank 0] sum 3" in told and "[rank 1] sum 3" in told


def test_outputs_are_labelled_by_rank(notebook):
    told = notebook.run("%%px\nprint('I am', comm.rank)\ncomm.rank * 10")
    for rank in (0, 1):
        assert f"[rank {rank}] I am {rank}\n" in told and f"[rank {rank}] {rank * 10}\n" in told
    told = notebook.run(
        "%%px\nimport sys\nprint('half a line', end='')\nprint('x', file=sys.stderr)"
    )
    assert "[rank 0] half a line" in told and "[rank 1] x" in told


def test_values_come_in_rank_order(notebook):
    notebook.run("%%px\nmine = comm.rank * 7")
    assert "[0, 7]" in notebook.run("print(ranks.pull('mine'))")
    notebook.run("def who():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD.rank")
    assert "[0, 1]" in notebook.run("print(ranks.apply(who))")


def test_an_error_on_one_rank_ends_the_cell_on_all(notebook):
    told = notebook.run("%%px\nif comm.rank == 1:\n    raise KeyError('lost')\ncomm.barrier()")
    assert "[rank 1]" in told and "KeyError" in told
    assert "rank 0 waits in comm.barrier for rank 1 (which has failed in this cell)" in told
    assert "RanksFailed: rank 0 had to be interrupted; rank 1: KeyError: 'lost'" in told
    assert still_works(notebook)


@pytest.mark.parametrize("leave", ["sys.exit(3)", "quit()", "raise SystemExit('no GPU')"])
def test_an_exit_on_one_rank_is_an_error_there(notebook, leave):
    told = notebook.run(f"%%px\nimport sys\nif comm.rank == 1:\n    {leave}\ncomm.barrier()")
    assert "RanksFailed: rank 0 had to be interrupted; rank 1: SystemExit" in told
    assert still_works(notebook)


def test_the_interrupt_button_ends_a_deadlock_that_has_explained_itself(notebook):
    told = notebook.run(
        "%%px\nother = 1 - comm.rank\nx = comm.recv(source=other)", interrupt_at="a deadlock"
    )
    for rank in (0, 1):
        assert re.search(
            rf"rank {rank} waits in comm\.recv for rank {1 - rank}, since \d+ s, at line 2: x = ",
            told,
        ), told
    assert "the ranks were interrupted and are ready again" in told
    assert still_works(notebook)


def test_the_notebook_itself_is_no_rank(notebook):
    """A killed kernel would leave the shared memory of its job of one."""
    told = notebook.run("import sys, hvdlab.rings\nprint('MPI', 'mpi4py.MPI' in sys.modules)")
    assert "MPI False" in told


def test_a_wait_of_hvdlite_explains_itself_and_ends_at_its_limit(notebook):
    notebook.run("%%px\nimport horovod.torch as hvd, torch\nhvd.init()")
    told = notebook.run("%%px --limit 7\nif hvd.rank() == 1:\n    hvd.allreduce(torch.ones(2))")
    assert "rank 1 waits in hvd.allreduce for rank 0 (which has finished this cell)" in told
    assert "7 seconds are over" in told and "KeyboardInterrupt" not in told
    told = notebook.run("%%px\nprint(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())")
    assert told.count("] 2.0") == 2 and still_works(notebook)


CALLS = """
a, b = np.full(200_000, float(comm.rank)), np.empty(200_000)
other = 1 - comm.rank
comm.Sendrecv(a, other, recvbuf=b, source=other); assert b[-1] == other
wait = comm.Irecv(b, other); comm.Send(a, other); wait.Wait(); assert b[0] == other
wait = comm.irecv(source=other); comm.send({'r': comm.rank}, other)
assert wait.wait() == {'r': other}
wait = comm.Isend(a, other); comm.Recv(b, other); wait.Wait()
assert comm.sendrecv(comm.rank, other, source=other) == other
status = MPI.Status()
comm.send('tagged', other, tag=5); assert comm.recv(status=status) == 'tagged' and status.tag == 5
assert comm.bcast('x' if comm.rank else None, root=1) == 'x'
assert comm.gather(comm.rank) == ([0, 1] if comm.rank == 0 else None)
assert comm.scatter([5, 6] if comm.rank == 0 else None) == 5 + comm.rank
assert comm.allgather(comm.rank) == [0, 1] and comm.alltoall([0, 1]) == [comm.rank] * 2
total = np.empty_like(a); comm.Allreduce(a, total); assert (total == 1).all()
comm.Bcast(total, root=1); comm.Reduce(a, total, root=1); comm.Barrier()
part = comm.Split(0, -comm.rank); assert part.rank == other and part.allreduce(1) == 2
assert comm.Dup().allreduce(1) == 2
print('all right')
"""


def test_the_calls_of_mpi_do_what_they_always_do(notebook):
    told = notebook.run("%%px\n" + CALLS)
    assert told.count("all right") == 2, told


def test_ranks_in_different_collectives_are_told_so(notebook):
    told = notebook.run("%%px\ncomm.barrier() if comm.rank else comm.bcast(1)")
    assert "rank 0 calls bcast with root 0, rank 1 calls barrier" in told
    assert still_works(notebook)


def test_a_rank_that_hears_no_interrupt_is_replaced(notebook):
    told = notebook.run(
        "%%px --limit 3\nif comm.rank == 0:\n    MPI.Intracomm.Barrier(comm)  # in C", timeout=150
    )
    assert "started anew" in told
    assert "[rank 1] 2" in notebook.run("%%px\nfrom mpi4py import MPI\nMPI.COMM_WORLD.size")
    notebook.run("%%px\ncomm = MPI.COMM_WORLD")
    assert still_works(notebook)


def test_without_engines_px_says_what_to_do():
    notebook = Notebook()
    try:
        told = notebook.run("%%px\nprint(1)")
        assert "engines.start(2)" in told and "Traceback" not in told
    finally:
        notebook.close()


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os._exit(3)", "rank 1 exited with code 3"),
        ("os.kill(os.getpid(), 9)", "rank 1 was killed by signal 9 (SIGKILL)"),
        ("ctypes.string_at(0)", "rank 1 was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_rank_that_ends_is_named_in_a_line_until_there_are_new_ones(end, told):
    notebook = Notebook()
    try:
        notebook.run(START)
        cell = "%%px\nimport os, ctypes\nfrom mpi4py import MPI\n"
        cell += f"if MPI.COMM_WORLD.rank == 1:\n    {end}\nMPI.COMM_WORLD.barrier()"
        first = notebook.run(cell)
        later = [notebook.run(c) for c in ("%%px\nprint(1)", "ranks.pull('x')", "ranks.push(x=1)")]
        for shown in (first, *later):
            (line,) = [one for one in shown.splitlines() if "EnginesError" in one]
            assert told in line and "engines.start(2)" in line
            assert "Traceback" not in shown and "ipyparallel" not in shown
        notebook.run(START)
        assert "[rank 1] 2" in notebook.run("%%px\nfrom mpi4py import MPI\nMPI.COMM_WORLD.size")
        assert "exited with code 5" in notebook.run("import os\nranks.apply(os._exit, 5)")
    finally:
        notebook.close()


def test_ranks_cost_few_processes(notebook):
    """The watchdog, the controller and its heart, mpiexec, and the ranks themselves."""
    assert len(notebook.children()) <= 6, notebook.commands()


def test_of_much_output_the_notebook_keeps_a_part(notebook):
    told = notebook.run("%%px\nfor number in range(30_000):\n    print('line', number)")
    assert len(told) < 100_000 and "the rest is left out" in told
    assert still_works(notebook)


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "hvdlab-engines"


def test_nothing_is_left_when_the_kernel_is_restarted_or_killed(runtime):
    notebook = Notebook()
    try:
        notebook.run(START)
        first = notebook.children()
        assert len(first) > 3 and list(runtime.glob("*.json"))
        notebook.restart()
        assert gone(first), "engines of a restarted kernel are still there"
        notebook.run("%load_ext hvdlab")
        notebook.run(START)
        second = notebook.children()
        psutil.Process(notebook.pid).kill()
        assert gone(second), "engines of a killed kernel are still there"
        assert not list(runtime.glob("*.json"))
        named = [Path(tempfile.gettempdir(), f"ompi.{child.pid}") for child in first + second]
        assert not [folder for folder in named if folder.exists()], "mpirun's files are left"
    finally:
        notebook.close()


def test_nothing_is_left_when_the_kernel_dies_during_the_start(runtime):
    notebook = Notebook()
    try:
        notebook.client.execute(START)
        assert wait_until(lambda: any("prterun" in c for c in notebook.commands().values()), 60)
        folder = json.loads(next(runtime.glob("*.json")).read_text())["folder"]
        psutil.Process(notebook.pid).kill()
        assert wait_until(lambda: not list(runtime.glob("*.json")), 60)
        assert not processes(folder)
    finally:
        notebook.close()


def test_stale_engines_are_found_at_the_next_start(runtime):
    first = Notebook()
    first.run(START)
    record = next(runtime.glob("*.json"))
    left = processes(json.loads(record.read_text())["folder"])
    assert len(left) > 3
    guard = next(p for p, c in first.commands().items() if "watchdog.py" in c)
    guard.kill()  # so that nobody is there to clean up
    psutil.Process(first.pid).kill()
    first.close()
    second = Notebook()
    try:
        told = second.run("from hvdlab import engines\nranks = engines.start(1)\nprint(ranks)")
        assert "of an earlier notebook were still there" in told
        assert gone(left) and not record.exists()
    finally:
        second.run("engines.stop()")
        assert not [c for c in second.commands().values() if "ipengine" in c]
        second.close()


def test_nothing_listens_beyond_loopback(notebook):
    found = []
    for process in notebook.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # of those that come and go
            if process.name() in ("mpiexec", "mpirun", "prterun"):
                continue  # Open MPI's launcher listens on all interfaces, and can't be told not to
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.append((process.name(), connection.laddr.ip))
    assert found and {ip for _, ip in found} <= {"127.0.0.1", "::1"}, found
