"""The ranks' output: every line tagged with its rank, nothing lost, no two ranks in one line.

mpirun's own forwarding reads in blocks: it tags a progress bar once, glues a last line without a
newline to the next rank's, and has no time limit for a line in the making. So each rank on this
machine writes straight into pipes of the launcher (see `ranks.py`), and this module tags them. It
works on bytes, so that no encoding can fail.

A piece of output ends at a newline or a carriage return and is passed on at once. A piece that
does not end is shown after a second, cut between two letters, and is continued without a new tag
unless another rank has spoken in between.
"""

from __future__ import annotations

import os
import select
import time

_HELD_SECONDS = {False: 1.0, True: 0.1}  # before an unfinished piece is shown; True: progress bar
_LONG_PIECE = 16 << 20  # bytes; not held back any longer than that


class Sink:
    """A terminal, pipe or file that all ranks share."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.writing = False
        self.terminal = os.isatty(fd)
        self.holder: Stream | None = None  # whose text stands on the current line
        self.ended = True  # that text ended in a carriage return

    def put(self, stream: Stream, pieces: list[bytes]) -> None:
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
        view = memoryview(text)
        while view and not self.broken:
            self.writing = True
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                select.select([], [self.fd], [], 1)
            except OSError:
                self.broken = True
            finally:
                self.writing = False

    def close(self) -> None:
        """End the line that is still open, if any."""
        if self.holder is not None:
            self.write(b"\n")
            self.holder = None


class Stream:
    """What one rank writes to its stdout or stderr."""

    def __init__(
        self, name: bytes, sink: Sink, copy: int | None = None, clock: bool = False
    ) -> None:
        """`name` is the tag, `copy` a file descriptor that gets the bytes as they are."""
        self.name, self.sink, self.copy, self.clock = name, sink, copy, clock
        self.progress = False  # the last piece ended in a carriage return
        self._pending = bytearray()
        self._held_since = 0.0

    def tag(self) -> bytes:
        """The rank's tag, after the time if that is wanted."""
        return time.asctime().encode() + self.name if self.clock else self.name

    def feed(self, data: bytes) -> None:
        """Take what the rank has just written."""
        if self.copy is not None:
            try:
                os.write(self.copy, data)
            except OSError as error:
                from hvdlite.launch.errors import say

                say(f"can't write the copy of the output: {error.strerror}")
                self.copy = None
        if not self._pending:
            self._held_since = time.monotonic()
        self._pending += data
        if b"\n" not in data and b"\r" not in data:
            return
        pieces = bytes(self._pending).splitlines(keepends=True)
        rest = b"" if pieces[-1].endswith((b"\n", b"\r")) else pieces.pop()
        self._pending = bytearray(rest)
        self._held_since = time.monotonic()
        self.progress = pieces[-1].endswith(b"\r")
        self.sink.put(self, pieces)

    @property
    def pending(self) -> bool:
        """Whether a piece is held back."""
        return bool(self._pending)

    def show_pending(self, at_end: bool = False) -> None:
        """Pass on an unfinished piece if it is old or long, or if all is over."""
        old = time.monotonic() - self._held_since >= _HELD_SECONDS[self.progress]
        if not self._pending or not (at_end or old or len(self._pending) > _LONG_PIECE):
            return
        end = len(self._pending) - (0 if at_end else _cut_letter(self._pending))
        if end:
            self.sink.put(self, [bytes(self._pending[:end])])
            del self._pending[:end]


def _cut_letter(text: bytearray) -> int:
    """How many bytes at the end belong to a UTF-8 letter that is not complete yet."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
        if byte < 0x80:
            break
    return 0


def make_sinks(stdout: int, stderr: int) -> tuple[Sink, Sink]:
    """Sinks for two descriptors; one and the same sink where both lead to the same place."""
    try:
        same = os.path.samestat(os.fstat(stdout), os.fstat(stderr))
    except OSError:
        same = False
    out = Sink(stdout)
    return out, out if same else Sink(stderr)
