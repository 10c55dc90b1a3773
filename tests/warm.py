"""Ranks that are forks of a process which has imported a framework already.

To import PyTorch or TensorFlow takes two to four seconds of a processor, for each rank anew.
For ranks that run functions of the tests (tests/mpi.py), one process, the nest, does it once. What
mpirun starts is `python warm.py ask ADDRESS ...`: it hands its environment and its files to the
nest, which forks the rank, and it ends as the rank does. Nothing of hvdlite or MPI is imported
before the fork. Programs in which ranks die run by `mpi.launch` instead.
"""

import atexit
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

_nests: dict[tuple, "Nest"] = {}


class Nest:
    """The process with the modules; it ends with this one."""

    def __init__(self, modules: tuple[str, ...], environment: dict[str, str]):
        self._folder = tempfile.TemporaryDirectory(prefix="nest-", dir="/dev/shm")
        self.address = os.path.join(self._folder.name, "socket")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", self.address, *modules],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"no process with {', '.join(modules)} could be started")

    def close(self) -> None:
        """End it, and with it all its ranks."""
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def command(
    modules: tuple[str, ...], variables: dict[str, str], environment: dict[str, str]
) -> list[str]:
    """What to start instead of `python`, for a rank whose process has the modules already.

    They are imported with `variables` set, so there is one nest for each set of these.
    """
    key = modules, tuple(sorted(variables.items()))
    if key not in _nests:
        _nests[key] = Nest(modules, environment)
        atexit.register(_nests[key].close)
    return [sys.executable, "-S", "-E", __file__, "ask", _nests[key].address]


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

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    tempfile.tempdir = None  # it was that of the nest
    sys.argv = request["argv"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(_ask(sys.argv[2], sys.argv[3:]))
    sys.path.pop(0)  # this folder
    _serve(sys.argv[2], sys.argv[3:])
