"""The agent: on each machine of an elastic job one process that outlives the generations of ranks.

It owns the job's folder on its machine, in memory, where the ranks keep what they commit. The ranks
are its forks, so that it sees at once how they end, and that they need not import their framework
anew: the agent has done it once. It ends, with all ranks and the folder, when its input does.

Each line from the launcher is an order:

    start NUMBER JSON       ranks of this generation may ask now; the variables of each
    change TIME KIND        hosts have come or gone
    signal NUMBER           to all ranks
    kill                    leave no rank of this generation

Lines to the launcher are the ranks' own reports as they are, and

    up                      ranks may ask now
    ended RANK STATUS       a rank's exit code, -N for signal N
    stopped RANK            it is killed, as somebody has stopped it, and it did not go on
    idle                    no rank is left
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from types import TracebackType

from hvdlite.runtime.launchers import ELASTIC, REPORT, rank_of

_RUNPY = runpy.run_path.__code__.co_filename
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
_STOPPED_SECONDS = 10  # that a rank may be stopped, by SIGSTOP, before it counts as failed


@dataclass
class Rank:
    """A fork, and since when it is stopped."""

    number: int
    stopped_since: float = float("inf")


class Agent:
    """The parent of this machine's ranks. Makes the `folder`, or has what an agent that has died
    left there."""

    def __init__(self, folder: str):
        self.folder = folder
        self.generation = -1
        self.variables: dict[str, dict[str, str]] = {}  # of each rank, besides mpirun's
        self.ranks: dict[int, Rank] = {}  # by their process ids
        self.askers: list[socket.socket] = []  # for ranks of this generation
        self.orders = b""
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in ("report", "socket"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")
        os.mkfifo(f"{folder}/report")
        self.out, self.input = FileIO(os.dup(1), "w"), FileIO(0, "r", closefd=False)
        os.dup2(2, 1)  # what imports print
        self.reports = FileIO(f"{folder}/report", "r+")
        os.set_blocking(self.reports.fileno(), False)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(f"{folder}/socket")
        self.server.listen(1024)
        self.events = selectors.DefaultSelector()
        for file in (self.input, self.reports, self.server):
            self.events.register(file, selectors.EVENT_READ)
        self._tell(b"up\n")

    def _tell(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # the launcher has gone
            self.out.write(text)

    def serve(self) -> dict | None:
        """Start ranks until the input ends; returns None then, and in each fork what to be."""
        while True:
            for key, _ in self.events.select(0.05):
                if key.fileobj is self.server:
                    if request := self._fork(self.server.accept()[0]):
                        return request
                elif key.fileobj is self.reports:
                    self._pass_reports()
                elif data := self.input.read(1 << 16):
                    *orders, self.orders = (self.orders + data).split(b"\n")
                    for order in orders:
                        self._obey(*order.decode().split(maxsplit=2))
                else:
                    self._kill_ranks()
                    shutil.rmtree(self.folder, ignore_errors=True)
                    return None
            self._look_after_ranks()

    def _obey(self, order: str, *words: str) -> None:
        if order == "change":
            with open(f"{self.folder}/hosts", "a") as file:
                print(*words, file=file)
        elif order == "start":
            self.generation, self.variables = int(words[0]), json.loads(words[1])
            open(f"{self.folder}/hosts", "w").close()
        elif order == "signal":
            for pid in self.ranks:
                os.killpg(pid, int(words[0]))
        else:
            self.generation = -1
            self._kill_ranks()
            self._tell(b"idle\n")

    def _fork(self, asker: socket.socket) -> dict | None:
        _, files, _, _ = socket.recv_fds(asker, len(b"files"), 3)
        request = json.loads(asker.makefile().readline())
        self.askers.append(asker)
        number = rank_of(request["environment"])
        if request["generation"] != self.generation:
            self.askers.pop().close()
        elif pid := os.fork():
            with contextlib.suppress(OSError):  # it has done so itself, and become another program
                os.setpgid(pid, pid)
            self.ranks[pid] = Rank(number)
        else:
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            os.setpgid(0, 0)
            for file in (self.out, self.reports, self.server, self.events, *self.askers):
                file.close()
            request["environment"] |= self.variables.get(str(number), {})
            request["environment"] |= {ELASTIC: self.folder, REPORT: f"{self.folder}/report"}
            return request | {"files": files}
        for file in files:
            os.close(file)
        return None

    def _look_after_ranks(self) -> None:
        flags, now = os.WNOHANG | os.WUNTRACED | os.WCONTINUED, time.monotonic()
        for pid, rank in list(self.ranks.items()):
            changed, status = os.waitpid(pid, flags)
            if changed and os.WIFSTOPPED(status):
                rank.stopped_since = now
            elif changed and os.WIFCONTINUED(status):
                rank.stopped_since = float("inf")
            elif changed:
                self._end(pid, status)
            elif now - rank.stopped_since > _STOPPED_SECONDS:
                self._tell(b"stopped %d\n" % rank.number)
                rank.stopped_since = float("inf")
                os.killpg(pid, signal.SIGKILL)

    def _end(self, pid: int, status: int) -> None:
        """Take leave of a rank that has ended.

        mpirun learns of it only when the generation ends, as it would stop the others.
        """
        with contextlib.suppress(OSError):  # its own children
            os.killpg(pid, signal.SIGKILL)
        self._pass_reports()  # its last words come first
        code = os.waitstatus_to_exitcode(status)
        self._tell(b"ended %d %d\n" % (self.ranks.pop(pid).number, code))

    def _kill_ranks(self) -> None:
        for pid in list(self.ranks):
            os.killpg(pid, signal.SIGKILL)
            self._end(pid, os.waitpid(pid, 0)[1])
        while self.askers:
            self.askers.pop().close()

    def _pass_reports(self) -> None:
        self._tell(self.reports.read(1 << 16) or b"")


def _become(command: list[str], environment: dict, folder: str, files: list[int], **_: object):
    """Be the rank: its environment, its folder, its files, its program."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    path = shutil.which(command[0]) or command[0]
    ours = os.path.dirname(path) == os.path.dirname(sys.executable)
    first = [*command, "-"][1]
    if not (ours and "python" in os.path.basename(path) and (first == "-m" or first[0] != "-")):
        os.execvp(command[0], command)  # noqa: S606
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # or all forks would draw the agent's numbers
    tempfile.tempdir = None  # it was the agent's
    sys.excepthook = functools.partial(_show_error, sys.excepthook)
    sys.argv = command[1:]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path[0] = ""
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


def _show_error(
    show: Callable, kind: type, error: BaseException, traceback: TracebackType | None
) -> None:
    """The excepthook, without this file's part of the traceback."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, _RUNPY):
        traceback = traceback.tb_next
    show(kind, error.with_traceback(traceback), traceback)


def main(folder: str, *modules: str) -> None:
    """Serve as this machine's agent; `modules` are those that the ranks shall have from the start.

    Ranks may ask at once, and wait until these are imported.
    """
    agent = Agent(folder + os.environ.get("SLURMD_NODENAME", ""))  # nodes may share a machine
    # Keras asks PyTorch for GPUs; asked in CUDA, no fork of this process could use one.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in modules:
        with contextlib.suppress(Exception):  # a rank will say it better
            importlib.import_module(name)
    gc.freeze()
    request = agent.serve()
    if request is not None:
        _become(**request)


if __name__ == "__main__":
    main(*sys.argv[1:])
