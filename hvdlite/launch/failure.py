"""Read MPI's own messages: find which rank failed and how, and keep the rest for the user.

MPI launchers print a long frame of text when a rank ends badly. The launcher says the same in one
line, so those frames are taken out of what mpirun writes; everything else passes.
"""

from __future__ import annotations

import re
import signal

from hvdlite.launch.output import Stream

_FRAME = re.compile(rb"(-{60,}|={60,})\s*")
_TAGGED = re.compile(rb"\[[^\[\],]*,(\d+)\]<(stdout|stderr)>: ?(.*)", re.DOTALL)
# Frames and lines about a rank's end: (pattern, what its groups are).
_ENDS = tuple(
    (re.compile(pattern, re.DOTALL), keys)
    for pattern, keys in (
        (r"MPI_ABORT was invoked on rank (\d+).*?Errorcode:\s*(-?\d+)", ("rank", "code")),
        (r"process rank (\d+) with PID (\d+) on node \S+ exited on\s+signal (\d+)",
         ("rank", "pid", "signal")),
        (r"Process name:\s*\[\S+,\s?(\d+)\]\s+Exit code:\s*(\d+)", ("rank", "code")),
        (r"due to process rank (\d+) with PID (\d+)", ("rank", "pid")),
        (r"RANK (\d+) PID (\d+) RUNNING AT .*?KILL(?:ED BY)? SIGNAL:\s*(\d+)",
         ("rank", "pid", "signal")),
        (r"RANK (\d+) PID (\d+) RUNNING AT .*?EXIT STATUS:\s*(\d+)", ("rank", "pid", "code")),
        # MPICH, whose process id here is not that of the rank
        (r"PID \d+ RUNNING AT .*?EXIT CODE:\s*(\d+)", ("code",)),
        (r"TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)", ("signal",)),
        (r"[Aa]bort\((-?\d+)\) on node \d+ \(rank (\d+) in", ("code", "rank")),
        (r"srun: error: .*task (\d+): Exited with exit code (\d+)", ("rank", "code")),
        (r"srun: error: .*task (\d+): (Killed|Terminated|Aborted|Segmentation fault)",
         ("rank", "signal")),
        (r"Primary job\s+terminated normally, but", ()),
        (r"YOUR APPLICATION TERMINATED WITH|typically refers to a problem with your app", ()),
        (r"Please see the FAQ page for debugging suggestions", ()),
        (r"^\[warn\] Epoll MOD", ()),  # libevent, when mpirun ends in a hurry
    )
)  # fmt: skip
_SIGNALS = {"Killed": 9, "Terminated": 15, "Aborted": 6, "Segmentation fault": 11}


class Messages:
    """mpirun's stdout or stderr: lines of other hosts' ranks, frames about a rank's end, the rest.

    Tagged lines go to `streams` by rank and name, the rest to `stream`. What frames say about the
    first rank to fail is kept in `end`.
    """

    def __init__(
        self, stream: Stream, streams: dict[tuple[int, str], Stream], end: dict[str, int]
    ) -> None:
        self.stream, self.streams, self.end = stream, streams, end
        self._part = b""  # of a line
        self._frame: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take a block of text."""
        lines = (self._part + data).splitlines(keepends=True)
        self._part = b"" if not lines or lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            tagged = _TAGGED.fullmatch(line)
            if tagged and (int(tagged[1]), tagged[2].decode()) in self.streams:
                self.streams[int(tagged[1]), tagged[2].decode()].feed(tagged[3])
            elif _FRAME.fullmatch(line) or self._frame:
                self._frame.append(line)
                if len(self._frame) > 1 and _FRAME.fullmatch(line):
                    self._pass(b"".join(self._frame))
                    self._frame = []
            else:
                self._pass(line)

    def close(self) -> None:
        """No more text comes."""
        self._pass(b"".join(self._frame) + self._part)
        self.stream.show_pending(at_end=True)

    def _pass(self, block: bytes) -> None:
        text = block.decode(errors="replace")
        for pattern, keys in _ENDS:
            match = pattern.search(text)
            if match:
                found = {key: _SIGNALS.get(value) or int(value)
                         for key, value in zip(keys, match.groups(), strict=True)}  # fmt: skip
                if not self.end or not found.keys() & {"rank", "pid"}:
                    self.end.update(found)
                return
        if block.strip():
            self.stream.feed(block)


def explain(code: int, end: dict[str, int], pids: dict[int, int], np: int) -> tuple[int, str]:
    """The job's exit code and the last line for the user.

    `code` is mpirun's return code (-N if signal N killed it), `end` what mpirun said about the
    first rank to fail, `pids` the process ids of the ranks.
    """
    if code < 0 and not end:
        return 128 - code, f"mpirun was killed by {_signal_name(-code)}; all ranks were stopped."
    rank = end.get("rank")
    if rank is None:
        rank = next((r for r, pid in pids.items() if pid == end.get("pid")), None)
    who = "a rank" if rank is None else f"rank {rank}"
    others = "; the other ranks were stopped." if np > 1 else "."
    number = end.get("signal")
    if number:
        if number == signal.SIGKILL:
            others = "; is the machine out of memory?"
        return 128 + number, f"{who} was killed by {_signal_name(number)}{others}"
    code = end.get("code", code) & 0xFF or code or 1
    if end:
        return code, f"{who} exited with code {code}{others}"
    if pids:  # Open MPI is silent if all ranks end within a moment
        return code, f"{'rank 0' if np == 1 else who} exited with code {code}."
    return code, f"no rank was started: mpirun ended with code {code}."


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
