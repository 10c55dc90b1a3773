"""Ctrl-C: held back while ranks set things up together, and heard by waits in every thread.

Python runs signal handlers in the main thread only, between two of its own instructions.
"""

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_UNHANDLED_AFTER = 0.05  # seconds in which the main thread would have come to its handlers


def in_main_thread() -> bool:
    """Whether signal handlers run in this thread."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold interrupts back for the short time in which the ranks set things up together.

    It is the handler that is exchanged: a signal that one thread blocks comes by another.
    """
    if not in_main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


class _Watch:
    """When a SIGINT came that the main thread has not come to handle."""

    pipe: int | None = None  # where Python writes the number of each signal when it arrives
    unhandled_since: float | None = None


def _handle(number: int, frame: FrameType | None) -> None:
    """Python's own handler of SIGINT, which takes what has arrived off the pipe."""
    _arrived()
    _Watch.unhandled_since = None
    signal.default_int_handler(number, frame)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _main_thread_is_back(_: object) -> int:
    _Watch.unhandled_since = None
    return 0


def _arrived() -> bytes:
    try:
        return os.read(_Watch.pipe, 4096)
    except BlockingIOError:
        return b""


def _listen() -> None:
    while select.select([_Watch.pipe], [], []):
        # Empty if the main thread was quicker: looked for while no other thread runs Python's code.
        if signal.SIGINT in _arrived():
            _Watch.unhandled_since = time.monotonic()
            # Runs in the main thread, as soon as that is in Python's code.
            ctypes.pythonapi.Py_AddPendingCall(_main_thread_is_back, None)


def watch() -> None:
    """Let waits in other threads end with Ctrl-C while the main thread is in foreign code.

    It may itself be waiting there for such a thread. Python writes to a pipe when a signal
    arrives, in whatever thread. Does nothing where somebody else listens to that pipe.
    """
    if _Watch.pipe is not None or not in_main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        return
    _Watch.pipe = reader
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)
    threading.Thread(target=_listen, name="signals", daemon=True).start()


def is_interrupted() -> bool:
    """Whether a SIGINT has come that the main thread can't handle, being in foreign code.

    Not so where the program has a handler of its own, which decides what comes of it.
    """
    since = _Watch.unhandled_since
    if since is None or time.monotonic() < since + _UNHANDLED_AFTER:
        return False
    return signal.getsignal(signal.SIGINT) in (_handle, signal.default_int_handler)
