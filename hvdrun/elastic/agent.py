"""The agent: on each machine of an elastic job one process that outlives the generations of ranks.

It owns the job's folder on its machine, in memory, where the ranks keep what they commit. The ranks
are its forks, so that it sees at once how they end, and that they need not import their framework
anew: the agent has done it once. It ends, with all ranks and the folder, when its input does.

The launcher writes a line of JSON for each order, and reads lines of words:

    up                      ranks may ask now
    end RANK STATUS         a rank's exit code, -N for signal N, "stopped" (for too long), or
                            "silent" (0 without a goodbye)
    said WORD ...           what a rank of this machine tells the launcher
    idle                    no rank of the generation that was to be killed is left
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
from io import FileIO
from types import TracebackType

from hvdlite.runtime.launchers import ELASTIC, REPORT, rank_of

_RUNPY = runpy.run_path.__code__.co_filename
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
_STOPPED_SECONDS = 10  # that a rank may be stopped, by SIGSTOP, before it counts as failed


class Rank:
    """A fork: its number, the line to its asker, and since when it is stopped."""

    def __init__(self, number: int, asker: socket.socket):
        self.number, self.asker = number, asker
        self.stopped_since = float("inf")
        self.was_stopped = False
        self.words: set[str] = set()  # of "here", "again", "end": what it has told the launcher


class Agent:
    """The parent of this machine's ranks. Makes the `folder`, or has what an agent that has died
    left there."""

    def __init__(self, folder: str):
        self.folder = folder
        self.generation = -1
        self.variables: dict[str, dict[str, str]] = {}  # of each rank, besides mpirun's
        self.ranks: dict[int, Rank] = {}  # by their process ids
        self.held: list[tuple[socket.socket, int]] = []  # askers that don't know of a failure yet
        self.orders = b""
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in ("report", "socket"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")
        os.mkfifo(f"{folder}/report")
        self.out, self.input = FileIO(os.dup(1), "w"), FileIO(0, "r", closefd=False)
        os.dup2(2, 1)  # what imports print
        self.reports = FileIO(f"{folder}/report", "r+")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(f"{folder}/socket")
        self.server.listen(1024)
        self.events = selectors.DefaultSelector()
        for file in (self.input, self.reports, self.server):
            self.events.register(file, selectors.EVENT_READ)
        self.tell("up")

    def tell(self, *words: object) -> None:
        """Tell the launcher; it may have gone."""
        with contextlib.suppress(OSError):
            self.out.write(" ".join(map(str, words)).encode() + b"\n")

    def serve(self) -> dict | None:
        """Start ranks until the input ends; returns None then, and in each fork what to be."""
        while True:
            for key, _ in self.events.select(0.05):
                if key.fileobj is self.server:
                    if request := self._fork(self.server.accept()[0]):
                        return request
                elif key.fileobj is self.reports:
                    self._pass_reports()
                elif key.fileobj is self.input:
                    data = self.input.read(1 << 16)
                    if not data:
                        self._kill_ranks()
                        shutil.rmtree(self.folder, ignore_errors=True)
                        return None
                    *orders, self.orders = (self.orders + data).split(b"\n")
                    for order in orders:
                        self._obey(**json.loads(order))
                else:
                    self._pass_signals(key.fileobj, key.data)
            self._look_after_ranks()

    def _obey(self, order: str, generation: int = 0, variables: dict | None = None,
              change: str = "") -> None:  # fmt: skip
        with open(f"{self.folder}/hosts", "w" if order == "start" else "a") as file:
            file.write(change)
        if order == "start":
            self.generation, self.variables = generation, variables
        elif order == "kill":
            self.generation = -1
            self._kill_ranks()
            self._pass_reports()
            self.tell("idle")

    def _fork(self, asker: socket.socket) -> dict | None:
        _, files, _, _ = socket.recv_fds(asker, len(b"files"), 3)
        request = json.loads(asker.makefile().readline())
        environment = request["environment"]
        number = rank_of(environment)
        if request["generation"] != self.generation:
            pid = None
        elif not (pid := os.fork()):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            os.setpgid(0, 0)
            for file in (self.out, self.reports, self.server, self.events, asker):
                file.close()
            for rank in self.ranks.values():
                rank.asker.close()
            environment.update(self.variables.get(str(number), {}))
            environment |= {ELASTIC: self.folder, REPORT: f"{self.folder}/report"}
            return request | {"files": files}
        for file in files:
            os.close(file)
        if pid is None:
            asker.close()
            return None
        with contextlib.suppress(OSError):  # it has done so itself, and become another program
            os.setpgid(pid, pid)
        self.ranks[pid] = Rank(number, asker)
        self.events.register(asker, selectors.EVENT_READ, pid)
        return None

    def _pass_signals(self, asker: socket.socket, pid: int) -> None:
        """Signal a rank as its asker was; kill it where that one has ended."""
        try:
            numbers = asker.recv(1 << 10).split()
        except OSError:
            numbers = []
        if not numbers:
            self.events.unregister(asker)
        for number in numbers or [signal.SIGKILL]:
            self._signal(pid, int(number))

    def _look_after_ranks(self) -> None:
        flags = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT
        for pid, rank in list(self.ranks.items()):
            seen = os.waitid(os.P_PID, pid, flags)
            if seen is None:
                if time.monotonic() - rank.stopped_since > _STOPPED_SECONDS:
                    rank.was_stopped, rank.stopped_since = True, float("inf")
                    self._signal(pid, signal.SIGKILL)
            elif seen.si_code in (os.CLD_STOPPED, os.CLD_CONTINUED):
                stopped = seen.si_code == os.CLD_STOPPED
                rank.stopped_since = time.monotonic() if stopped else float("inf")
                os.waitid(os.P_PID, pid, os.WSTOPPED if stopped else os.WCONTINUED)
            else:
                self._end(pid)

    def _end(self, pid: int) -> None:
        """Take leave of a rank that has ended, or ends now.

        mpirun learns of a failure only when the generation ends, as it would stop the others.
        """
        with contextlib.suppress(OSError):  # its own children
            os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._pass_reports()  # its last words come first
        rank = self.ranks.pop(pid)
        how: int | str = "stopped" if rank.was_stopped else status
        if status == 0 and rank.words == {"here"} and len(self.variables) > 1:
            status, how = 1, "silent"  # the others wait for it
        self.tell("end", rank.number, how)
        with contextlib.suppress(KeyError):
            self.events.unregister(rank.asker)
        if status:
            self.held.append((rank.asker, status))
        else:
            self._answer(rank.asker, status)

    def _answer(self, asker: socket.socket, status: int) -> None:
        with contextlib.suppress(OSError), asker:
            asker.sendall(b"%d\n" % status)

    def _kill_ranks(self) -> None:
        for pid in list(self.ranks):
            self._signal(pid, signal.SIGKILL)
            self._end(pid)
        for asker, status in self.held:
            self._answer(asker, status)
        self.held.clear()

    def _signal(self, pid: int, number: int) -> None:
        for send in (os.killpg, os.kill):  # it may not lead its group yet
            with contextlib.suppress(OSError):
                return send(pid, number)

    def _pass_reports(self) -> None:
        os.set_blocking(self.reports.fileno(), False)
        for line in (self.reports.read(1 << 16) or b"").decode().splitlines():
            self.tell("said", line)
            word, number, *_ = line.split()
            for rank in self.ranks.values():
                if rank.number == int(number):
                    rank.words.add(word)


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
    for name in modules:
        with contextlib.suppress(Exception):  # a rank will say it better
            importlib.import_module(name)
    gc.freeze()
    request = agent.serve()
    if request is not None:
        _become(**request)


if __name__ == "__main__":
    main(*sys.argv[1:])
