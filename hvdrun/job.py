"""One job: mpirun as a child process, everybody's output, signals, and a clean end."""

import contextlib
import os
import resource
import select
import selectors
import signal
import subprocess
import threading
import time
from argparse import Namespace
from contextlib import ExitStack
from io import FileIO
from typing import TextIO

from hvdrun.errors import LaunchError, say
from hvdrun.failure import Failure, Messages, Report, explain, explain_reports
from hvdrun.output import Stream, make_sinks, open_copy
from hvdrun.ranks import GUARD

_GRACE_SECONDS = 4  # between a signal to mpirun and the end of everything
_NAMES = ("stdout", "stderr")


class Job:
    """A job of `np` ranks. `args` are horovodrun's options, `out` and `err` take the output."""

    copy_mode = "w"  # of the files in --output-filename

    def __init__(self, np: int, args: Namespace, out: int | TextIO, err: int | TextIO) -> None:
        self.np, self.args = np, args
        self.pids: dict[int, int] = {}  # of the ranks on this machine
        self.end: dict[str, int] = {}  # what mpirun says about the first rank to fail
        self.reports: dict[int, Report] = {}  # what ranks have said as they ended, in that order
        self.stopped_by = 0  # the signal that came first
        self.until = float("inf")  # when the job ends at the latest
        self.mpirun: subprocess.Popen | None = None
        self.input: FileIO | None = None  # rank 0's, where it gets the launcher's
        self.sinks = make_sinks(out, err)
        self.streams: dict[tuple[int, str], Stream] = {}
        self.messages = [Messages(sink, self.streams, self.end) for sink in self.sinks]
        self.readers = selectors.DefaultSelector()

    def run(self, line: list[str], environment: dict[str, str], folder: str) -> int:
        """Start `line`, follow it to its end and return the job's exit code.

        `folder` is for the job's pipes; it is removed at the end, whatever happens.
        """
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with ExitStack() as stack:  # what is entered last ends first
            self._take_signals(stack)
            out, err = self._open_pipes(folder, stack)
            stack.callback(self._show_rest)
            self.mpirun = _start(stack, line, env=environment, stdin=null, stdout=out, stderr=err)
            stack.callback(self.mpirun.kill)  # in case somebody has killed the guard
            guard = ["/bin/sh", "-c", GUARD, "horovodrun-guard", str(self.mpirun.pid), folder]
            self.guard = _start(stack, guard, bufsize=0, stdin=pipe, stdout=null, stderr=null)
            self._follow()
        return self._verdict()

    def _take_signals(self, stack: ExitStack) -> None:
        """Have signals sent to the job meanwhile. Only the main thread can arrange that."""
        handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self.stop)
        handlers |= dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2), self.send)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                    stack.callback(signal.signal, number, signal.signal(number, handler))

    def _open_pipes(self, folder: str, stack: ExitStack) -> list[FileIO]:
        """Make the folder's pipes and everybody's stream; returns the two for mpirun to write."""
        stack.enter_context(self.readers)
        _make_room_for_files((4 if self.args.output_filename else 2) * self.np + 40, self.np)
        with open("/proc/sys/kernel/random/boot_id") as file:
            prefix = f"{folder}/{file.read().strip()}"

        def pipe(name: str) -> FileIO:
            """The launcher has both ends, so that no pipe ends before the job does."""
            os.mkfifo(f"{prefix}.{name}")
            file = stack.enter_context(FileIO(f"{prefix}.{name}", "r+"))
            os.set_blocking(file.fileno(), False)
            return file

        # Nothing else: a pipe may hold the next commands, as in a notebook's %%bash cell.
        if os.isatty(0) or os.path.isfile("/proc/self/fd/0"):
            self.input = pipe("0.stdin")
        takers, copies = {"report": self._read_reports}, self.args.output_filename
        for name, sink, messages in zip(_NAMES, self.sinks, self.messages, strict=True):
            takers[f"mpirun.{name}"] = messages.feed
            for rank in range(self.np):
                copy = copies and open_copy(copies, rank, self.np, name, self.copy_mode)
                tag = f"[1,{rank}]<{name}>:".encode()
                stream = Stream(tag, sink, copy and stack.enter_context(copy), self.args.timestamps)
                self.streams[rank, name] = stream
                takers[f"{rank}.{name}"] = stream.feed
        for name, take in takers.items():
            self.readers.register(pipe(name), selectors.EVENT_READ, take)
        return [stack.enter_context(open(f"{prefix}.mpirun.{name}", "wb")) for name in _NAMES]

    def _follow(self) -> None:
        """Read from everybody until mpirun has ended. Its process id stays taken, for the guard."""
        if self.stopped_by:
            self.send(self.stopped_by)  # it came while mpirun was being started
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not os.waitid(os.P_PID, self.mpirun.pid, look) and time.monotonic() < self.until:
            self._read(0.05)
            self.tick()
            for stream in self.streams.values():
                stream.show_pending()
            if 0 in self.pids:  # which has opened the pipe's other end then
                self._pass_input()
        self._read(0)  # also of ranks that have ended at once, the guard needs to know

    def tick(self) -> None:
        """What a kind of job has to do again and again, many times a second."""

    def _read(self, seconds: float) -> None:
        for key, _ in self.readers.select(seconds):
            if data := key.fileobj.read(1 << 16):
                key.data(data)

    def _pass_input(self) -> None:
        """Copy what is there to rank 0, as far as there is room for it; never wait."""
        while self.input and all(select.select([0], [self.input], [], 0)[:2]):
            if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
                return  # in the background, where the terminal's input is for somebody else
            data = os.read(0, select.PIPE_BUF)
            if data:
                self.input.write(data)
            else:
                self.input.close()
                self.input = None

    def _read_reports(self, data: bytes) -> None:
        for line in data.decode().splitlines():
            self.hear(line.split())

    def hear(self, words: list[str]) -> None:
        """A rank reports "RANK PID" as it starts, and hvdlite "end RANK CODE CAUSE" at its end."""
        match words:
            case ["end", rank, code, cause]:
                report = Report(int(code), None if cause == "-" else int(cause))
                self.reports.setdefault(int(rank), report)
            case [rank, pid]:
                self.pids[int(rank)] = int(pid)
                self._tell_guard(pid)

    def _tell_guard(self, word: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was killed, or is at work already
            self.guard.stdin.write(f"{word}\n".encode())

    def stop(self, number: int, _frame: object = None) -> None:
        """Pass a signal to mpirun, and at the second one kill the ranks.

        After some seconds, everything ends, and nothing waits for whoever reads the output.
        """
        if self.stopped_by:
            self._tell_guard("kill")
            return
        self.stopped_by = number
        self.until = time.monotonic() + _GRACE_SECONDS
        for sink in self.sinks:
            sink.until = min(sink.until, self.until)
        self.send(number)

    def send(self, number: int, _frame: object = None) -> None:
        """Send a signal to mpirun. It would ignore SIGHUP, or hand it to the ranks."""
        if self.mpirun is not None and self.mpirun.returncode is None:
            os.kill(self.mpirun.pid, signal.SIGTERM if number == signal.SIGHUP else number)

    def _show_rest(self) -> None:
        """Show all output that has come."""
        for _ in range(32):  # more than a pipe holds, should somebody write without end
            self._read(0)
        for messages in self.messages:
            messages.close()
        for stream in self.streams.values():
            stream.show_pending(at_end=True)
        for sink in self.sinks:
            sink.close()

    def _verdict(self) -> int:
        if self.stopped_by:
            say(f"stopped by {signal.Signals(self.stopped_by).name}; all ranks have ended.")
            return 128 + self.stopped_by
        if self.mpirun.returncode == 0 and not self.end:
            return 0
        failure = self.explain()
        say(failure.text)
        return failure.code

    def explain(self) -> Failure:
        """What has gone wrong, by the word of the ranks, else by mpirun's."""
        found = explain_reports(self.reports, self.np)
        return found or explain(self.mpirun.returncode, self.end, self.pids, self.np)


def _make_room_for_files(count: int, np: int) -> None:
    """Raise this process's limit of open files to `count` if need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise LaunchError(
            f"-np {np} needs {count} open files, and this session may have {hard}; raise the limit "
            "(ulimit -Hn shows it) or start fewer ranks"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _start(stack: ExitStack, words: list[str], **more: object) -> subprocess.Popen:
    """Start a process in a session of its own: a terminal's Ctrl-C comes to the launcher alone,
    which passes it on once."""
    try:
        return stack.enter_context(subprocess.Popen(words, start_new_session=True, **more))
    except OSError as error:
        raise LaunchError(f"can't start {words[0]}: {error.strerror}") from None
