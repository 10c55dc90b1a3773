"""Ranks that are forks of a process which has imported a framework already.

To import PyTorch or TensorFlow takes two to four seconds of a processor, for each rank anew. One
process, the nest, does it once:

    with Nest(("tensorflow", "keras"), folder, environment) as nest:
        subprocess.run(["mpirun", "-n", "2", *nest.python, "program.py"])

What the launcher starts is this file, by its path and without its package: it hands its
environment and its files to the nest, which forks the rank, and it ends as the rank does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence


class Nest:
    """The process with the modules; it ends with this one, and with it all its ranks.

    Attributes:
        python: what to start instead of `python` for a rank.
        folder: where its socket is; a path that is not long.
    """

    def __init__(
        self,
        modules: Sequence[str],
        folder: str,
        environment: dict[str, str],
        within: Sequence[str] = (),
    ):
        """Import the modules, with these variables; `within` is a command that runs another one.

        Raises RuntimeError if that can't be done.
        """
        address = os.path.join(folder, "socket")
        self.folder = folder
        self.python = [sys.executable, "-S", "-E", __file__, "ask", address]
        self._process = subprocess.Popen(
            [*within, sys.executable, __file__, "serve", address, *modules],
            # Keras asks PyTorch for GPUs; asked in CUDA, no fork could use one.
            env=environment | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"no process with {', '.join(modules)} could be started")

    @property
    def is_up(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Nest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ask(address: str, argv: list[str]) -> int:
    """The exit code of the fork that this process asks for."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        request = {"environment": dict(os.environ), "folder": os.getcwd(), "argv": argv}
        socket.send_fds(line, [b"files"], [0, 1, 2])
        line.sendall(json.dumps(request).encode() + b"\n")
        return int(line.recv(16) or b"1")


def _serve(address: str, modules: list[str]) -> None:
    """Fork for each request; end the forks whose askers are gone, and all with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt ends the imports without a word
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    # From here on it is the parent's, which may go on, and the ranks'.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    forks: dict[int, socket.socket] = {}
    events = selectors.DefaultSelector()
    events.register(server, selectors.EVENT_READ)
    events.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in events.select(0.05 if forks else None):
            if key.fileobj is sys.stdin:
                for fork in forks:
                    os.kill(fork, signal.SIGKILL)
                return
            if key.fileobj is server:
                line = server.accept()[0]
                _, files, _, _ = socket.recv_fds(line, len(b"files"), 3)
                request = json.loads(line.makefile().readline())
                fork = os.fork()
                if fork == 0:
                    events.close()
                    server.close()
                    line.close()
                    for other in forks.values():
                        other.close()
                    _become(request, files)
                for file in files:
                    os.close(file)
                forks[fork] = line
                events.register(line, selectors.EVENT_READ, fork)
            elif key.data in forks:
                os.kill(key.data, signal.SIGKILL)
                events.unregister(key.fileobj)
        while forks:
            fork, status = os.waitpid(-1, os.WNOHANG)
            if not fork:
                break
            with forks.pop(fork) as line, contextlib.suppress(OSError, KeyError):
                events.unregister(line)
                line.sendall(str(os.waitstatus_to_exitcode(status) & 255).encode())


def _become(request: dict, files: list[int]) -> None:
    """Be the rank: its environment, its folder, its files, its program."""
    import runpy

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    tempfile.tempdir = None  # it was that of the nest
    sys.argv = request["argv"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path.insert(0, "")
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(_ask(sys.argv[2], sys.argv[3:]))
    sys.path.pop(0)  # this folder
    _serve(sys.argv[2], sys.argv[3:])
