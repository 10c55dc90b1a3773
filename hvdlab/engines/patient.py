"""MPI.COMM_WORLD of the engines: MPI's calls, made so that a wait can be seen and interrupted.

A rank that calls MPI's `recv` sits in C until a message comes; no signal of Python's gets through
to it, and the only cure for a deadlock would be a new process. Here each blocking call starts its
non-blocking twin and looks again and again whether it is complete. So an interrupt ends it at any
moment, and a thread can tell which call waits, for whom, and since when.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

_SPIN = 0.002  # seconds of looking without sleep
_LONGEST_SLEEP = 0.002
# fmt: off
_COLLECTIVES = [
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce",
    "scan", "exscan", "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather",
    "Allgatherv", "Alltoall", "Alltoallv", "Reduce", "Allreduce", "Reduce_scatter",
    "Reduce_scatter_block", "Scan", "Exscan", "split",
]
_WITH_ROOT = {"bcast", "gather", "scatter", "reduce", "Bcast", "Gather", "Scatter", "Reduce"}
# fmt: on


class Waiting:
    """The call that this rank waits in now: its name, the ranks it waits for, since when."""

    call: str = ""
    peers: list[int] | None = None  # None: a collective, so all that have not come
    since: float = 0.0


_abandoned: list[MPI.Request] = []  # left by an interrupt; MPI may still use their memory


@contextmanager
def waiting(call: str, peers: list[int] | None) -> Iterator[None]:
    """Note down that this rank is in that call."""
    if Waiting.call:  # one call made of others: the outer one is the user's
        yield
        return
    Waiting.call, Waiting.peers, Waiting.since = call, peers, time.time()
    try:
        yield
    finally:
        Waiting.call = ""


def until(ready: Callable[[], Any]) -> Any:
    """Look until `ready()` gives something true, and return that. Interruptible."""
    start = time.monotonic()
    while True:
        result = ready()
        if result:
            return result
        waited = time.monotonic() - start
        if waited < _SPIN:
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST_SLEEP, waited / 30))


def _finish(*requests: MPI.Request) -> None:
    """Wait for requests without a result of their own."""
    try:
        for request in requests:
            until(request.Test)
    except BaseException:
        _abandoned.extend(requests)
        raise


@contextmanager
def _meanwhile(request: MPI.Request) -> Iterator[None]:
    """The block runs while the request is under way; then it is waited for."""
    try:
        yield
    except BaseException:
        _abandoned.append(request)
        raise
    _finish(request)


class Request(MPI.Request):
    """What isend, irecv and their kind return; waiting for it can be interrupted."""

    def wait(self, status: MPI.Status | None = None) -> Any:
        with waiting("wait", []):
            return until(lambda: (found := self.test(status))[0] and found)[1]

    def Wait(self, status: MPI.Status | None = None) -> bool:
        with waiting("Wait", []):
            return until(lambda: self.Test(status))


class Comm(MPI.Intracomm):
    """A communicator whose blocking calls can be interrupted; otherwise mpi4py's own."""

    # One to one, Python objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        with waiting("send", [dest]):
            _finish(super().isend(obj, dest, tag))

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        with waiting("ssend", [dest]):
            _finish(super().issend(obj, dest, tag))

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        with waiting("recv", _source(source)):
            return until(lambda: self.improbe(source, tag, status)).recv(status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        request = super().isend(sendobj, dest, sendtag)
        with waiting("sendrecv", _source(source)), _meanwhile(request):
            return self.recv(None, source, recvtag, status)

    # One to one, arrays

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        with waiting("Send", [dest]):
            _finish(super().Isend(buf, dest, tag))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        with waiting("Ssend", [dest]):
            _finish(super().Issend(buf, dest, tag))

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        with waiting("Recv", _source(source)):
            request = super().Irecv(buf, source, tag)
            try:
                until(lambda: request.Test(status))
            except BaseException:
                request.Cancel()
                _abandoned.append(request)
                raise

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        request = super().Isend(sendbuf, dest, sendtag)
        with waiting("Sendrecv", _source(source)), _meanwhile(request):
            self.Recv(recvbuf, source, recvtag, status)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request(super().isend(obj, dest, tag))

    def irecv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> Request:
        return Request(super().irecv(buf, source, tag))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request(super().Isend(buf, dest, tag))

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Request:
        return Request(super().Irecv(buf, source, tag))

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        self.meet("split")
        return Comm(super().Split(color, key))

    # Communicators for libraries such as hvdlite, which know themselves how to wait

    def Dup(self, info: MPI.Info | None = None) -> MPI.Intracomm:
        return plain(self).Dup()

    def Idup(self, info: MPI.Info | None = None) -> tuple[MPI.Intracomm, MPI.Request]:
        return plain(self).Idup()

    def meet(self, call: str, root: int = -1) -> None:
        """Wait until all ranks are in this collective call.

        Raises RuntimeError on all of them if they are in different ones.
        """
        mine = np.array([_COLLECTIVES.index(call), root], np.int64)
        all_calls = np.empty((self.size, 2), np.int64)
        with waiting(call, None):
            _finish(super().Iallgather(mine, all_calls))
        if (all_calls != mine).any():
            told = [
                f"rank {rank} calls {_COLLECTIVES[number]}"
                + (f" with root {root}" if root >= 0 else "")
                for rank, (number, root) in enumerate(all_calls.tolist())
            ]
            raise RuntimeError(
                f"the ranks make different collective calls: {', '.join(told)}. "
                "All ranks must make the same calls in the same order."
            )


def _source(source: int) -> list[int]:
    return [source] if source >= 0 else []


def plain(comm: MPI.Intracomm) -> MPI.Intracomm:
    """The same communicator with mpi4py's own calls, which can't be interrupted."""
    return MPI.Intracomm(comm)


def _collective(name: str) -> Callable:
    original = getattr(MPI.Intracomm, name)

    def call(self: Comm, *args: Any, **kwargs: Any) -> Any:
        root = -1
        if name in _WITH_ROOT:
            where = {"reduce": 2, "Reduce": 3, "Gather": 2, "Scatter": 2}.get(name, 1)
            root = kwargs.get("root", args[where] if len(args) > where else 0)
        self.meet(name, root)
        return original(self, *args, **kwargs)

    call.__name__ = name
    call.__doc__ = original.__doc__
    return call


for _name in _COLLECTIVES[:-1]:
    setattr(Comm, _name, _collective(_name))
