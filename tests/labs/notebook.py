"""A real Jupyter kernel for the tests of cells."""

import contextlib
import os
import threading
import time
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[2]


class Notebook:
    """A kernel after `%load_ext hvdlab`; `run` executes a cell and returns all that it shows."""

    def __init__(self, **env: str):
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        # Not activated: the commands of the environment must be found all the same.
        env = {**os.environ, "PYTHONPATH": paths, "PATH": "/usr/bin:/bin", **env}
        self.manager, self.client = start_new_kernel(env=env, startup_timeout=60)
        self.run("%load_ext hvdlab")

    def run(self, source: str, timeout: float = 200, interrupt_at: str = "") -> str:
        """Run a cell; as soon as it has shown `interrupt_at`, press the interrupt button."""
        told: list[str] = []

        def hook(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                told.append(content["text"])
            elif message["msg_type"] == "error":
                told.append("\n".join(content["traceback"]))
            elif "data" in content:
                told.append(content["data"].get("text/plain", ""))
            if interrupt_at and interrupt_at in "".join(told) and not pressed.is_set():
                pressed.set()
                self.manager.interrupt_kernel()

        pressed = threading.Event()
        self.client.execute_interactive(source, timeout=timeout, output_hook=hook)
        return "".join(told)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def commands(self) -> dict[psutil.Process, str]:
        """Name and command line of each child that is still there."""
        found = {}
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                found[child] = " ".join([child.name(), *child.cmdline()])
        return found

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=60)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def gone(processes: list[psutil.Process], within: float = 30) -> bool:
    """Whether all of them end within that time."""
    _, alive = psutil.wait_procs(processes, within)
    return not alive


def wait_until(true, within: float = 30) -> bool:
    """Whether `true()` becomes so within that time."""
    end = time.monotonic() + within
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(true())
