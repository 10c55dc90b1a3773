"""One job: mpirun as a child process, everybody's output, signals, and a clean end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading

from hvdlite.launch.errors import LaunchError, say
from hvdlite.launch.failure import Messages, explain
from hvdlite.launch.output import Stream, make_sinks
from hvdlite.launch.ranks import Input, Pipes, guard_command

_GRACE_SECONDS = 5  # between a signal to mpirun and the end of everything


class Job:
    """A job of `np` ranks. `copies` maps (rank, "stdout" or "stderr") to descriptors of files."""

    def __init__(
        self, np: int, copies: dict[tuple[int, str], int], clock: bool, out: int, err: int
    ) -> None:
        self.np = np
        self.pids: dict[int, int] = {}  # of the ranks on this machine
        self.stopped_by = 0  # the signal that came first
        self.kills = 0
        self.mpirun: subprocess.Popen | None = None
        self.guard: subprocess.Popen | None = None
        self.sinks = make_sinks(out, err)
        self.streams = {
            (rank, name): Stream(b"[1,%d]<%s>:" % (rank, name.encode()), sink,
                                 copies.get((rank, name)), clock)
            for rank in range(np)
            for name, sink in zip(("stdout", "stderr"), self.sinks, strict=True)
        }  # fmt: skip
        self.end: dict[str, int] = {}  # what mpirun says about the first rank to fail
        self.messages = [Messages(Stream(b"", sink), self.streams, self.end) for sink in self.sinks]
        self.readers: dict[int, object] = {}  # descriptor -> function that takes its bytes

    def run(self, line: list[str], command: list[str], environment: dict[str, str]) -> int:
        """Start `line` + `command`, follow it to its end and return the job's exit code."""
        pipes = Pipes(self.np)
        try:
            self.readers[pipes.report] = self._note_rank
            takers = [stream.feed for stream in self.streams.values()]
            self.readers.update(zip(pipes.outputs, takers, strict=True))
            with _Signals(self):
                try:
                    self._start([*line, *pipes.rank_command(), *command], environment)
                    self._follow(Input(pipes))
                finally:
                    if self.mpirun:
                        self._end()
        finally:
            pipes.close()
        return self._verdict()

    def _start(self, line: list[str], environment: dict[str, str]) -> None:
        """Start mpirun and its guard, each in a session of its own: a terminal's Ctrl-C comes to
        the launcher alone, which passes it on once."""
        try:
            self.mpirun = subprocess.Popen(
                line, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(f"can't start {line[0]}: {error.strerror}") from None
        self.guard = subprocess.Popen(
            guard_command(self.mpirun.pid), start_new_session=True, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        pipes = (self.mpirun.stdout, self.mpirun.stderr)
        for pipe, messages in zip(pipes, self.messages, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self.readers[pipe.fileno()] = messages.feed
        if self.stopped_by:
            self._send(self.stopped_by)  # it came while mpirun was being started

    def _follow(self, stdin: Input) -> None:
        """Read from everybody until mpirun has ended."""
        poll = select.poll()
        for fd in self.readers:
            poll.register(fd, select.POLLIN)
        while self.mpirun.poll() is None:
            busy = stdin.open or any(stream.pending for stream in self.streams.values())
            for fd, _ in poll.poll(50 if busy else 200):
                if not self._read(fd):
                    poll.unregister(fd)  # mpirun's own pipes end when it does
                    _wait(self.mpirun, 0.02)
            for stream in self.streams.values():
                stream.show_pending()
            stdin.pass_on()

    def _read(self, fd: int) -> bool:
        """Take a block from `fd`; False if there is none."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self.readers[fd](data)
        return bool(data)

    def _note_rank(self, data: bytes) -> None:
        """A rank reports "RANK PID" as it starts."""
        for line in data.decode().splitlines():
            rank, pid = line.split()
            self.pids[int(rank)] = int(pid)
            self._tell_guard(pid)

    def _tell_guard(self, word: str) -> None:
        with contextlib.suppress(OSError, AttributeError):  # it was killed, or never started
            os.write(self.guard.stdin.fileno(), f"{word}\n".encode())

    def stop(self, number: int) -> None:
        """Pass a signal to mpirun; at the second one, or when time is up, kill everything."""
        if self.stopped_by:
            self.kill_ranks()
            return
        self.stopped_by = number
        self._send(number)
        signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS, 1)

    def _send(self, number: int) -> None:
        if self.mpirun is not None and self.mpirun.returncode is None:
            # mpirun would ignore SIGHUP, or hand it to the ranks
            self.mpirun.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def kill_ranks(self) -> None:
        """Kill the ranks on this machine and what they have started."""
        for pid in self.pids.values():
            _kill(pid, one=self.mpirun.returncode is None)
        self.kills += 1

    def kill(self) -> None:
        """Kill the ranks; mpirun, which then ends and clears up, only if it was asked before."""
        if self.kills and self.mpirun.returncode is None:
            _kill(self.mpirun.pid)
        self.kill_ranks()

    def _end(self) -> None:
        """Whatever happened: leave no process, and show all output that has come."""
        if self.mpirun.poll() is None:
            self._send(signal.SIGTERM)
            _wait(self.mpirun, _GRACE_SECONDS)
        self.kill_ranks()
        if not _wait(self.mpirun, 2):
            self.kill()
        if self.mpirun.wait() == -signal.SIGKILL:  # Open MPI could not remove its files
            import shutil
            import tempfile

            folder = os.path.join(tempfile.gettempdir(), f"ompi.{self.mpirun.pid}")
            shutil.rmtree(folder, ignore_errors=True)
        for fd in self.readers:
            for _ in range(32):  # more than a pipe holds, should somebody write without end
                if not self._read(fd):
                    break
        for messages in self.messages:
            messages.close()
        for stream in self.streams.values():
            stream.show_pending(at_end=True)
        for sink in self.sinks:
            sink.close()
        self._tell_guard("done")
        for pipe in (self.mpirun.stdout, self.mpirun.stderr, self.guard and self.guard.stdin):
            if pipe:
                pipe.close()
        if self.guard:
            self.guard.wait()

    def _verdict(self) -> int:
        if self.stopped_by:
            say(f"stopped by {signal.Signals(self.stopped_by).name}; all ranks have ended.")
            return 128 + self.stopped_by
        if self.mpirun.returncode == 0 and not self.end:
            return 0
        code, message = explain(self.mpirun.returncode, self.end, self.pids, self.np)
        say(message)
        return code


def _wait(process: subprocess.Popen, seconds: float) -> bool:
    """Wait for a process's end for some seconds; whether it came."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(pid: int, one: bool = True) -> None:
    """Kill a process group, as Open MPI gives each rank; and, if `one`, the process alone, for
    families that don't."""
    for kill in (os.killpg, os.kill) if one else (os.killpg,):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


class _Signals:
    """While a job runs, signals go to it. Only the main thread can arrange that."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.before: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                self.before[number] = signal.signal(number, self._handle)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self.before[number] = signal.signal(number, lambda n, _: self.job._send(n))

    def _handle(self, number: int, _frame: object) -> None:
        if number != signal.SIGALRM:
            self.job.stop(number)
            return
        self.job.kill()
        if any(sink.writing for sink in self.job.sinks):
            raise InterruptedError("nobody reads the output")  # ends the write that waits

    def __exit__(self, *_: object) -> None:
        if self.before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)
