"""The timeline: what became of each tensor and when, as Chrome trace events.

Rank 0 writes it, with Horovod's event names. Each tensor is shown as a process of the trace; under
NEGOTIATE_ALLREDUCE a tick for each rank marks when that rank asked for the collective. The file is
valid JSON after every write. A thread writes it, so that training does not wait for the disk.
Format: "Trace Event Format", Google, 2016.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from hvdlite.request import Request

_WRITE_EVERY = 0.02  # seconds; events of that time are written together


class Timeline:
    """Writes events to `path` until `stop()`. A file that can't be written is told of once."""

    def __init__(self, path: str, mark_cycles: bool = False):
        self.path = path
        self.mark_cycles = mark_cycles
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._started = time.monotonic_ns()
        try:
            self._file = open(path, "wb", buffering=0)
            self._file.write(b"[\n]")
        except OSError as error:
            self._complain(error)
            return
        self._empty = True
        self._thread = threading.Thread(target=self._write_all, name="timeline", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether events still go to a file."""
        return self._thread is not None

    def stop(self) -> None:
        """Write what is left and close the file."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join(10)
            self._thread = None

    # Events, in the order of a request's life

    def negotiate(self, request: Request) -> None:
        """The rank has asked for the collective."""
        kind = _trace_name(request)
        for tensor in _tensors(request):
            self._event("B", tensor, f"NEGOTIATE_{kind}")

    def agreed(self, requests: Sequence[Request], posted_at: Sequence[int], ranks: Sequence[int]):
        """All ranks have; `posted_at` tells when (time.monotonic_ns), where that is known."""
        if self.mark_cycles:
            self._put({"ph": "i", "name": "CYCLE_START", "s": "g", "pid": 0, "ts": self._now()})
        for request in requests:
            kind = _trace_name(request)
            for tensor in _tensors(request):
                for rank, when in zip(ranks, posted_at, strict=False):
                    moment = (when - self._started) / 1000
                    self._event("X", tensor, str(rank), {"dur": 0, "ts": max(moment, 0)})
                self._event("E", tensor)
                self._event("B", tensor, kind)

    def begin(self, requests: Sequence[Request], activity: str) -> None:
        """A part of the work on these requests begins."""
        for request in requests:
            for tensor in _tensors(request):
                self._event("B", tensor, activity)

    def end(self, requests: Sequence[Request]) -> None:
        """The part that began last is over."""
        for request in requests:
            for tensor in _tensors(request):
                self._event("E", tensor)

    def finished(self, request: Request) -> None:
        """The request has its result, or its error."""
        what = request.descriptor
        for tensor in _tensors(request):
            self._event("E", tensor, args={"dtype": what.dtype, "shape": str(what.shapes[0])})

    # Writing

    def _now(self) -> float:
        return (time.monotonic_ns() - self._started) / 1000

    def _event(
        self, phase: str, tensor: str, name: str = "", more: dict | None = None, args: Any = None
    ) -> None:
        event = {"ph": phase, "name": name, "ts": self._now(), "pid": self._number(tensor)}
        event.update(more or {})
        if args:
            event["args"] = args
        self._put(event)

    def _number(self, tensor: str) -> int:
        with self._lock:
            number = self._numbers.get(tensor)
            if number is None:
                number = self._numbers[tensor] = len(self._numbers) + 1
                meta = {"ph": "M", "pid": number}
                self._put({**meta, "name": "process_name", "args": {"name": tensor}})
                self._put({**meta, "name": "process_sort_index", "args": {"sort_index": number}})
        return number

    def _put(self, event: dict[str, Any]) -> None:
        if self._thread is not None:
            self._events.put(event)

    def _write_all(self) -> None:
        with self._file:
            going_on = True
            while going_on:
                events = [self._events.get()]
                if events[0] is not None:
                    time.sleep(_WRITE_EVERY)
                while not self._events.empty():
                    events.append(self._events.get())
                going_on = None not in events
                try:
                    self._append([event for event in events if event is not None])
                except OSError as error:
                    self._thread = None
                    self._complain(error)
                    return

    def _append(self, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        text = ",\n".join(json.dumps(event) for event in events)
        # Over the closing bracket of the last time.
        self._file.seek(-1 if self._empty else -2, os.SEEK_END)
        start = "" if self._empty else ",\n"
        data = f"{start}{text}\n]".encode()
        written = self._file.write(data)
        self._empty = False
        if written != len(data):
            raise OSError("the disk is full")

    def _complain(self, error: OSError) -> None:
        print(
            f"hvdlite: no timeline is written to {self.path!r}: {error}. Training goes on; give "
            "the name of a file in a folder that you may write to.",
            file=sys.stderr,
            flush=True,
        )


def _trace_name(request: Request) -> str:
    return request.descriptor.kind.upper()


def _tensors(request: Request) -> Sequence[str]:
    return request.members or (request.descriptor.name,)
