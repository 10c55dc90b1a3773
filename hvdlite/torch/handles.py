"""Handles: a number for each asynchronous call, until `synchronize` gives its result."""

import itertools
from typing import Any

from hvdlite.calls import Call

_calls: dict[int, Call] = {}
_next_handle = itertools.count(1)


def start(call: Call) -> int:
    """The handle of a call under way."""
    handle = next(_next_handle)
    _calls[handle] = call
    return handle


def _call_of(handle: int) -> Call:
    call = _calls.get(handle)
    if call is None:
        raise ValueError(
            f"{handle!r} is not a handle of a call under way: each handle, as an _async function "
            "returned it, can be synchronized once"
        )
    return call


def poll(handle: int) -> bool:
    """Whether the call is done, so that `synchronize` won't wait. Moves calls along.

    On a GPU it is done when it is in the GPU's queue.
    """
    return _call_of(handle).poll()


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous call and return its result.

    On a GPU, what the current stream does from now on comes after the call; the host goes on.
    Raises HorovodInternalError, the same on every rank, where the call failed.
    """
    call = _call_of(handle)
    del _calls[handle]
    return call.wait()
