"""hvdlite.run from the cells of a real Jupyter kernel."""

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

REPOSITORY = Path(__file__).resolve().parents[2]


class Notebook:
    """A kernel; `run` executes a cell and tells what it printed, and its error if it had one."""

    def __init__(self):
        folders = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
        self.manager, self.client = start_new_kernel(env=env, startup_timeout=60)

    def run(self, source: str, while_running=lambda text: None, timeout: float = 50) -> str:
        """`while_running` is called with each piece of output that arrives before the end."""
        told: list[str] = []

        def hook(message):
            content = message["content"]
            text = {"stream": "text", "execute_result": "data"}.get(message["msg_type"])
            if text == "text":
                told.append(content["text"])
                while_running(content["text"])
            elif text:
                told.append(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                told.append("\n".join(content["traceback"]))

        self.client.execute_interactive(source, timeout=timeout, output_hook=hook)
        return "".join(told)

    def ranks_left(self) -> list[psutil.Process]:
        kernel = psutil.Process(self.manager.provisioner.pid)
        end = time.monotonic() + 10
        while (left := kernel.children(recursive=True)) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    yield notebook
    notebook.close()


DEFINE = """
import threading, time
import torch
import hvdlite
import hvdlite.torch as hvd

weights = torch.nn.Linear(50, 50)(torch.ones(2, 50)).sum()  # torch is in use in the kernel
weights.backward()
hvd.init()
factor = 10

class Box:
    def __init__(self, value):
        self.value = value

def closure(offset):
    def work(more):
        import os
        import hvdlite.torch as hvd
        hvd.init()
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        assert total == hvd.size() == 2
        return Box(hvd.rank() * factor + offset + more)
    return work
"""


def test_a_function_of_a_cell_with_all_that_it_uses(notebook):
    assert notebook.run(DEFINE) == ""
    cell = "[box.value for box in hvdlite.run(closure(3), args=(1,), np=2)]"
    assert notebook.run(cell) == "[4, 14]"
    assert notebook.run("factor = 20\n" + cell) == "[4, 24]"  # the cell edited, and run again
    assert notebook.run("hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.size()") == "(1.0, 1)"


def test_an_error_of_a_rank_is_shown_and_the_next_run_works(notebook):
    told = notebook.run(
        """
def fails():
    import hvdlite.torch as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("no such layer")
    hvd.barrier()
hvdlite.run(fails, np=2)
"""
    )
    assert "RuntimeError" in told and "rank 1 of 2" in told and "no such layer" in told
    assert "in fails" in told  # the rank's own traceback
    assert notebook.ranks_left() == []
    told = notebook.run(
        """
lock = threading.Lock()
def guarded():
    with lock:
        return 1
hvdlite.run(guarded, np=2)
"""
    )
    assert "TypeError" in told and "guarded can't be sent to the ranks: lock can't be" in told
    assert notebook.run("hvdlite.run(lambda: 7, np=2)") == "[7, 7]"


def test_output_comes_while_the_cell_runs_and_an_interrupt_ends_it(notebook):
    seen = []

    def interrupt_later(text: str) -> None:
        seen.append(text)
        if "started" in text and "".join(seen).count("started") == 2:
            threading.Timer(0.5, notebook.manager.interrupt_kernel).start()

    told = notebook.run(
        """
def stuck():
    import time
    import hvdlite.torch as hvd
    hvd.init()
    print("started", hvd.rank(), flush=True)
    if hvd.rank() == 0:
        hvd.barrier()
    time.sleep(600)
hvdlite.run(stuck, np=2)
""",
        interrupt_later,
    )
    assert "started 0" in told and "started 1" in told and "KeyboardInterrupt" in told
    assert notebook.ranks_left() == []
    assert notebook.run("[len(x) for x in hvdlite.run(lambda: b'x' * 50_000_000, np=2)]") == (
        "[50000000, 50000000]"
    )
    assert sys.executable in notebook.run("hvdlite.run(lambda: __import__('sys').executable)")
