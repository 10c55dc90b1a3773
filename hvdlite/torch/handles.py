"""Handles: a number for each asynchronous call, until `synchronize` gives its result."""

import itertools
from collections.abc import Callable
from typing import Any

from hvdlite.basics import engine
from hvdlite.request import Request


class _Call:
    """What a handle stands for: the requests under way, and how their results become tensors."""

    __slots__ = ("engine", "finish", "group", "requests")

    def __init__(self, requests: list[Request], group: int, finish: Callable[[], Any]):
        self.engine = engine()  # after shutdown() and init() there is another one
        self.requests = requests
        self.group = group
        self.finish = finish


_calls: dict[int, _Call] = {}
_next_handle = itertools.count(1)


def start(requests: list[Request], group: int, finish: Callable[[], Any]) -> int:
    """Submit requests; returns the handle of them all, whose result `finish` makes at the end."""
    call = _Call(requests, group, finish)
    for request in requests:
        call.engine.submit(request, group)
    handle = next(_next_handle)
    _calls[handle] = call
    return handle


def _call_of(handle: int) -> _Call:
    call = _calls.get(handle)
    if call is None:
        raise ValueError(
            f"{handle!r} is not a handle of a call under way: each handle, as an _async function "
            "returned it, can be synchronized once"
        )
    return call


def poll(handle: int) -> bool:
    """Whether the call is done, so that `synchronize` won't wait. Moves calls along."""
    call = _call_of(handle)
    done = [call.engine.poll(request, call.group) for request in call.requests]
    return all(done)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous call and return its result.

    Raises HorovodInternalError, the same on every rank, where the call failed.
    """
    call = _call_of(handle)
    del _calls[handle]
    for request in call.requests:
        call.engine.wait(request, call.group)
    return call.finish()


def single(handle: int) -> int:
    """Make the result of a call for a list of one tensor that tensor."""
    call = _calls[handle]
    finish = call.finish
    call.finish = lambda: finish()[0]
    return handle
