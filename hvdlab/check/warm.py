"""Ranks from a process that has imported TensorFlow already, for many checks in a row.

More than half of a check of Keras is spent in the import of TensorFlow by each rank. Here one
process imports it once; each rank of each check is a fork of it, which becomes the observer:

    with warm("tensorflow", "keras") as command:
        observe(script, phases, command=command)

This file is run by its path, without its package: the rank that the launcher starts does nothing
but ask for a fork and wait for its end.
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
from collections.abc import Iterator


@contextlib.contextmanager
def warm(*modules: str) -> Iterator[list[str]]:
    """The command that starts a rank, as long as the process with these modules runs.

    Raises RuntimeError if it could not be started.
    """
    from .run import environment

    with tempfile.TemporaryDirectory(prefix="hvdlab-warm-") as folder:
        address = os.path.join(folder, "socket")
        for name in ("tmp", "home"):
            os.mkdir(os.path.join(folder, name))
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", address, *modules],
            env=environment(folder, "warm"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            if server.stdout.readline() != b"ready\n":
                raise RuntimeError(f"no process with {', '.join(modules)} could be started")
            yield [sys.executable, __file__, "ask", address]
        finally:
            server.stdin.close()
            server.wait()


def _ask(address: str, plan: str) -> int:
    """What the launcher starts: the exit code of the fork that it asks for."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        request = {"environment": dict(os.environ), "folder": os.getcwd(), "plan": plan}
        line.sendall(json.dumps(request).encode() + b"\n")
        return int(line.recv(16) or b"1")


def _serve(address: str, modules: list[str]) -> None:
    """Fork for each request, end the fork of a rank that was killed, end with the parent."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    forks: dict[int, socket.socket] = {}
    events = selectors.DefaultSelector()
    events.register(server, selectors.EVENT_READ)
    events.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in events.select(0.05):
            if key.fileobj is sys.stdin:
                for fork in forks:
                    os.kill(fork, signal.SIGKILL)
                return
            if key.fileobj is server:
                line = server.accept()[0]
                request = json.loads(line.makefile().readline())
                fork = os.fork()
                if fork == 0:
                    events.close()
                    server.close()
                    line.close()
                    _become(request)
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


def _become(request: dict) -> None:
    """Be the observer of this request, within the limits of the check, and exit."""
    from hvdlab.check import confine, run
    from hvdlab.check.observe.__main__ import main

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    tempfile.tempdir = None  # it was that of the process with the modules
    confine.give_up(os.path.dirname(request["plan"]), run.MEMORY_MB, run.FILE_MB)
    sys.path.insert(0, "")
    sys.argv = ["observe", request["plan"]]
    sys.exit(main())


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    if sys.argv[1] == "ask":
        sys.exit(_ask(*sys.argv[2:]))
    _serve(sys.argv[2], sys.argv[3:])
