"""The ranks' output: every line tagged with its rank, nothing lost, no two ranks in one line.

mpirun's own forwarding reads in blocks: it tags a progress bar once, glues a last line without a
newline to the next rank's, and has no time limit for a line in the making. So each rank on this
machine writes straight into pipes of the launcher (see `ranks.py`), and this module tags them. It
works on bytes, so that no encoding can fail.

A piece of output ends at a newline or a carriage return and is passed on at once. A piece that
does not end is shown after a second, cut between two letters, and is continued without a new tag
unless another rank has spoken in between.
"""

import codecs
import contextlib
import os
import select
import time
from io import FileIO
from pathlib import Path
from typing import TextIO

from hvdrun.errors import LaunchError, say

_HELD_SECONDS = {False: 1.0, True: 0.1}  # before an unfinished piece is shown; True: progress bar
_LONG_PIECE = 16 << 20  # bytes; not held back any longer than that


class Sink:
    """What all ranks share: a terminal, pipe or file, or a stream of Python's, as notebooks have.

    `target` is a file descriptor or that stream.
    """

    def __init__(self, target: int | TextIO) -> None:
        self.target = target
        self.terminal = isinstance(target, int) and os.isatty(target)
        self.until = float("inf")  # after this time, output that nobody takes is dropped
        self.holder: Stream | None = None  # whose text stands on the current line
        self.ended = True  # that text ended in a carriage return

    def put(self, stream: "Stream", pieces: list[bytes]) -> None:
        """Write pieces of one rank; all but the last end in a newline or carriage return."""
        in_line = self.holder is stream and not self.ended
        # A bar's leading carriage return: each of our pieces starts at the left anyway.
        pieces = [p for i, p in enumerate(pieces) if p != b"\r" or (i == 0 and in_line)]
        if not pieces:
            return
        tag = stream.tag()
        continues = in_line or (self.holder is stream and pieces[0] == b"\n")
        text = tag.join(pieces) if continues else tag + tag.join(pieces)
        if self.holder not in (None, stream):
            # Another rank's line is open. A progress bar on a terminal is wiped; it comes again.
            wipe = self.terminal and self.holder.progress
            text = (b"\r\x1b[K" if wipe else b"\n") + text
        self.write(text)
        self.holder = None if text.endswith(b"\n") else stream
        self.ended = text.endswith(b"\r")

    def write(self, text: bytes) -> None:
        """Write all of `text`. Once nobody listens, output is dropped and the job goes on."""
        if not isinstance(self.target, int):
            self.target.write(text.decode(errors="replace"))
            self.target.flush()
            return
        ready = select.poll()
        ready.register(self.target, select.POLLOUT)
        view = memoryview(text)
        while view and time.monotonic() < self.until:
            try:
                if ready.poll(500):  # so there is room for a block, and write doesn't wait
                    view = view[os.write(self.target, view[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue  # somebody else has filled it
            except OSError:
                self.until = 0

    def close(self) -> None:
        """End the line that is still open, if any."""
        if self.holder is not None:
            self.write(b"\n")
            self.holder = None


class Stream:
    """What one rank writes to its stdout or stderr."""

    def __init__(
        self, name: bytes, sink: Sink, copy: FileIO | None = None, clock: bool = False
    ) -> None:
        """`name` is the tag, `copy` a file that gets the bytes as they are."""
        self.name, self.sink, self.copy, self.clock = name, sink, copy, clock
        self.progress = False  # the last piece ended in a carriage return
        self.pending = bytearray()  # the piece that is held back
        self._held_since = 0.0

    def tag(self) -> bytes:
        """The rank's tag, after the time if that is wanted."""
        return time.asctime().encode() + self.name if self.clock else self.name

    def feed(self, data: bytes) -> None:
        """Take what the rank has just written."""
        try:
            if self.copy:
                self.copy.write(data)
        except OSError as error:
            say(f"can't write the copy of the output: {error.strerror}")
            self.copy = None
        if not self.pending:
            self._held_since = time.monotonic()
        self.pending += data
        if b"\n" in data or b"\r" in data:
            pieces = bytes(self.pending).splitlines(keepends=True)
            rest = b"" if pieces[-1].endswith((b"\n", b"\r")) else pieces.pop()
            self.pending, self._held_since = bytearray(rest), time.monotonic()
            self.put(pieces)

    def put(self, pieces: list[bytes]) -> None:
        """Pass on pieces that have their end."""
        self.progress = pieces[-1].endswith(b"\r")
        self.sink.put(self, pieces)

    def show_pending(self, at_end: bool = False) -> None:
        """Pass on an unfinished piece if it is old or long, or if all is over."""
        old = time.monotonic() - self._held_since >= _HELD_SECONDS[self.progress]
        if self.pending and (at_end or old or len(self.pending) > _LONG_PIECE):
            end = len(self.pending) - (0 if at_end else _cut_letter(self.pending))
            if end:
                self.sink.put(self, [bytes(self.pending[:end])])
                del self.pending[:end]


def _cut_letter(text: bytearray) -> int:
    """How many bytes at the end belong to a UTF-8 letter that is not complete yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-3:])
    return len(decoder.getstate()[0])


def open_copy(folder: str, rank: int, np: int, name: str, mode: str) -> FileIO:
    """Open DIR/rank.N/stdout or stderr; N is padded with zeros, so that the names sort well."""
    path = Path(folder, f"rank.{rank:0{len(str(np - 1))}}", name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileIO(path, mode)
    except OSError as error:
        raise LaunchError(f"can't write to --output-filename {folder}: {error.strerror}") from None


def make_sinks(stdout: int | TextIO, stderr: int | TextIO) -> tuple[Sink, Sink]:
    """Two sinks; one and the same sink where both lead to the same place."""
    out = Sink(stdout)
    with contextlib.suppress(OSError, TypeError):  # closed, or no descriptors
        if os.path.sameopenfile(stdout, stderr):
            return out, out
    return out, Sink(stderr)
