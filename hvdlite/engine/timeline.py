"""The timeline: what became of each tensor and when, as Chrome trace events.

Rank 0 writes it, with Horovod's event names. Each tensor is shown as a process of the trace; under
NEGOTIATE_ALLREDUCE a tick for each rank marks when that rank asked for the collective. The file is
valid JSON after every write. A thread writes it, so that training does not wait for the disk.
Format: "Trace Event Format", Google, 2016.
"""

import atexit
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hvdlite.request import Request

COPY_IN, COPY_OUT = "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"
_END = b"\n]"
_WRITE_EVERY = 0.02  # seconds; events of that time are written together


class Timeline:
    """Writes events to `path` until `stop()`. A file that can't be written is told of once."""

    def __init__(self, path: str, mark_cycles: bool = False):
        self.path = path
        self.mark_cycles = mark_cycles
        self.active = False  # whether events still go to a file
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._started = time.monotonic_ns()
        try:
            self._file = open(path, "wb", buffering=0)
            self._file.write(b"[\n" + _END)
        except OSError as error:
            self._complain(error)
            return
        self.active = True
        self._thread = threading.Thread(target=self._write_all, name="timeline", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Write what is left and close the file."""
        if self.active:
            self._events.put(None)
            self._thread.join(10)
            self.active = False
            atexit.unregister(self.stop)

    # Events, in the order of a request's life

    def negotiate(self, request: Request) -> None:
        """The rank has asked for the collective."""
        self._mark([request], "B", f"NEGOTIATE_{request.descriptor.kind.upper()}")

    def agreed(
        self, requests: Sequence[Request], posted_at: Sequence[int] = (), ranks: Sequence[int] = ()
    ) -> None:
        """All ranks have; `posted_at` tells when (time.monotonic_ns), where that is known."""
        if self.mark_cycles:
            self._put({"ph": "i", "name": "CYCLE_START", "s": "g", "pid": 0, "ts": self.now()})
        for rank, when in zip(ranks, posted_at, strict=False):
            self._mark(requests, "X", str(rank), dur=0, ts=max((when - self._started) / 1000, 0))
        for request in requests:
            self._mark([request], "E")
            self._mark([request], "B", request.descriptor.kind.upper())

    def copied(self, requests: Sequence[Request], began: float) -> None:
        """From `began` on their data was packed for all ranks, before they have agreed."""
        self._mark(requests, "B", COPY_IN, ts=began)
        self._mark(requests, "E")

    @contextmanager
    def activity(self, requests: Sequence[Request], *words: str) -> Iterator[None]:
        """A part of the work on these requests goes on; the words make its name."""
        self._mark(requests, "B", "_".join(words).upper())
        yield
        self._mark(requests, "E")

    def finished(self, request: Request) -> None:
        """The request has its result, or its error."""
        descriptor, members = request.descriptor, len(request.members)
        # Where it has members the shape is that of all of them together.
        shape = str(descriptor.shapes[0])
        args = {"dtype": descriptor.dtype, "shape": shape, "members": members}
        self._mark([request], "E", args=args)

    # Writing

    def now(self) -> float:
        """Microseconds since the start, as the events have them."""
        return (time.monotonic_ns() - self._started) / 1000

    def _mark(self, requests: Sequence[Request], phase: str, name: str = "", **more: Any) -> None:
        """An event for each tensor of the requests."""
        for request in requests:
            for tensor in request.members or (request.descriptor.key,):
                number = self._number(tensor)
                self._put({"ph": phase, "name": name, "ts": self.now(), "pid": number, **more})

    def _number(self, tensor: str) -> int:
        with self._lock:
            if tensor not in self._numbers:
                number = self._numbers[tensor] = len(self._numbers) + 1
                meta = {"ph": "M", "pid": number}
                self._put({**meta, "name": "process_name", "args": {"name": tensor}})
                self._put({**meta, "name": "process_sort_index", "args": {"sort_index": number}})
            return self._numbers[tensor]

    def _put(self, event: dict[str, Any]) -> None:
        if self.active:
            self._events.put(event)

    def _write_all(self) -> None:
        events, separator = [], ""
        with self._file:
            while None not in events:
                events = [self._events.get()]
                time.sleep(_WRITE_EVERY)
                while not self._events.empty():
                    events.append(self._events.get())
                text = ",\n".join(json.dumps(event) for event in events if event is not None)
                if text:
                    try:
                        self._append(f"{separator}{text}".encode())
                    except OSError as error:
                        self.active = False
                        self._complain(error)
                        return
                    separator = ",\n"

    def _append(self, data: bytes) -> None:
        """Write behind the last event; an OSError leaves the file as it was."""
        end = self._file.seek(-len(_END), os.SEEK_END)
        try:
            if self._file.write(data + _END) < len(data + _END):
                raise OSError("the disk is full")
        except OSError:
            self._file.truncate(end)  # which makes room for the bracket that was here
            self._file.seek(end)
            self._file.write(_END)
            raise

    def _complain(self, error: OSError) -> None:
        print(
            f"hvdlite: no timeline is written to {self.path!r}: {error}. Training goes on; give "
            "the name of a file in a folder that you may write to.",
            file=sys.stderr,
            flush=True,
        )
