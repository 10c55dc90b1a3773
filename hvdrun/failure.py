"""Read MPI's own messages: find which rank failed and how, and keep the rest for the user.

MPI launchers print a long frame of text when a rank ends badly. The launcher says the same in one
line, so those frames are taken out of what mpirun writes; everything else passes.
"""

import re
import signal
from collections.abc import Mapping
from typing import NamedTuple

from hvdrun.output import Sink, Stream

_FRAME = re.compile(rb"(-{60,}|={60,})\s*")
_TAGGED = re.compile(rb"\[[^\[\],]*,(\d+)\]<(stdout|stderr)>: ?(.*)", re.DOTALL)
# Frames and lines about a rank's end, and what they say about it.
_ENDS = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"MPI_ABORT was invoked on rank (?P<rank>\d+).*?Errorcode:\s*(?P<code>-?\d+)",
        r"rank (?P<rank>\d+) with PID (?P<pid>\d+) on node \S+ exited on\s+signal (?P<signal>\d+)",
        r"Process name:\s*\[\S+,\s?(?P<rank>\d+)\]\s+Exit code:\s*(?P<code>\d+)",
        r"due to process rank (?P<rank>\d+) with PID (?P<pid>\d+) on \S+ \S+ (?P<improper>exiting)",
        r"due to process rank (?P<rank>\d+) with PID (?P<pid>\d+)",
        r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT .*?SIGNAL:\s*(?P<signal>\d+)",
        r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT .*?EXIT STATUS:\s*(?P<code>\d+)",
        # MPICH, whose process id here is not that of the rank
        r"PID \d+ RUNNING AT .*?EXIT CODE:\s*(?P<code>\d+)",
        r"TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d+)\)",
        r"[Aa]bort\((?P<code>-?\d+)\) on node \d+ \(rank (?P<rank>\d+) in",
        r"srun: error: .*task (?P<rank>\d+): Exited with exit code (?P<code>\d+)",
        r"srun: error: .*task (?P<rank>\d+): "
        r"(?P<signal>Killed|Terminated|Aborted|Segmentation fault)",
        r"Primary job\s+terminated normally, but|Please see the FAQ page for debugging suggestions|"
        r"YOUR APPLICATION TERMINATED WITH|typically refers to a problem with your app",
        r"^\[warn\] Epoll MOD",  # libevent, when mpirun ends in a hurry
    )
]
# What stands for a number in those texts.
_NUMBERS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}
_NUMBERS["exiting"] = 1


class Messages(Stream):
    """mpirun's stdout or stderr: lines of other hosts' ranks, frames about a rank's end, the rest.

    Tagged lines go to `streams` by rank and name. What frames say about the first rank to fail is
    kept in `end`.
    """

    def __init__(self, sink: Sink, streams: Mapping[tuple[int, str], Stream], end: dict[str, int]):
        super().__init__(b"", sink)
        self.streams, self.end = streams, end
        self._frame: list[bytes] = []

    def put(self, pieces: list[bytes]) -> None:
        """Sort whole lines."""
        for line in pieces:
            tagged = _TAGGED.fullmatch(line)
            stream = self.streams.get((int(tagged[1]), tagged[2].decode())) if tagged else None
            edge = _FRAME.fullmatch(line)
            if stream:
                stream.feed(tagged[3])
            elif edge or self._frame:
                self._frame.append(line)
                if edge and len(self._frame) > 1:
                    self._pass(b"".join(self._frame))
                    self._frame = []
            else:
                self._pass(line)

    def close(self) -> None:
        """No more text comes."""
        self._pass(b"".join(self._frame + [self.pending]))

    def _pass(self, block: bytes) -> None:
        block = block.replace(b"\0", b"")  # prterun ends some of its frames with one
        text = block.decode(errors="replace")
        match = next(filter(None, (pattern.search(text) for pattern in _ENDS)), None)
        if match:
            found = {key: _NUMBERS.get(value) or int(value)
                     for key, value in match.groupdict().items()}  # fmt: skip
            if not self.end or not found.keys() & {"rank", "pid"}:
                self.end.update(found)
        elif block.strip():
            self.sink.put(self, block.splitlines(keepends=True))


class Failure(NamedTuple):
    """The exit code of what has failed, and a line about it for the user."""

    code: int
    text: str


class Report(NamedTuple):
    """A rank's exit code by its own word, and the rank that made it end so, if one did."""

    code: int
    cause: int | None


def explain_reports(reports: Mapping[int, Report], np: int) -> Failure | None:
    """How a job has failed by what ranks have said as they ended.

    MPI's launcher names whichever process has ended first, which may be one that waited for the
    rank to be named. None if no rank has reported a failure, or if the culprit has not reported.
    """
    failed = next((rank for rank, report in reports.items() if report.code), None)
    if failed is None:
        return None
    code, cause = reports[failed]
    if cause is not None and cause not in reports:
        return None
    if cause is not None and reports[cause].code == 0:
        return Failure(code, (
            f"rank {cause} ended early, with code 0, while others still waited for it; rank "
            f"{failed} then exited with code {code}. All ranks must make the same number of steps."
        ))  # fmt: skip
    rank = failed if cause is None else cause
    return explain(1, {"rank": rank, "code": reports[rank].code}, {}, np)


def explain(code: int, end: dict[str, int], pids: dict[int, int], np: int) -> Failure:
    """How a job has failed by what MPI's launcher says.

    `code` is mpirun's return code (-N if signal N killed it), `end` what mpirun said about the
    first rank to fail, `pids` the process ids of the ranks.
    """
    ranks = {pid: rank for rank, pid in pids.items()}
    rank = end.get("rank", ranks.get(end.get("pid")))
    who = "a rank" if rank is None else f"rank {rank}"
    others = "; the other ranks were stopped." if np > 1 else "."
    if code < 0 and not end:
        text = f"mpirun was killed by {_signal_name(-code)}; all ranks were stopped."
        return Failure(128 - code, text)
    if number := end.get("signal"):
        others = "; is the machine out of memory?" if number == signal.SIGKILL else others
        return Failure(128 + number, f"{who} was killed by {_signal_name(number)}{others}")
    if end.get("improper"):
        text = f"{who} ended in MPI's midst (by os._exit, or before hvd.init()){others}"
        return Failure(code or 1, text)
    code = end.get("code", code) & 0xFF or code or 1
    if end:
        return Failure(code, f"{who} exited with code {code}{others}")
    if pids:  # Open MPI is silent if all ranks end within a moment
        return Failure(code, f"{'rank 0' if np == 1 else who} exited with code {code}.")
    return Failure(code, f"no rank was started: mpirun ended with code {code}.")


def _signal_name(number: int) -> str:
    named = number in signal.Signals.__members__.values()
    return f"signal {number} ({signal.Signals(number).name})" if named else f"signal {number}"
