"""A communicator that writes down each message that goes through it. Runs on the ranks.

The data that the student's function works on is marked: element i of rank r is
BASE**r + (i + 1) / FINE. Sums of such numbers still tell which ranks are in them, how often, and
which element they belong to, wherever they were copied to on their way.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..engines import patient
from .record import BASE, FINE, PER_CHUNK


class RecordingComm(patient.Comm):
    """Counts messages and bytes; `log` holds what happened on this rank, in order."""

    def watch(self, data: np.ndarray) -> RecordingComm:
        """Begin a new log, and note the state of `data` after each event."""
        self.data, self.log = data, []
        return self

    def note(self, kind: str, peer: int, tag: int, buffer: Any) -> None:
        """Write one event down; `buffer` is what was sent or received."""
        values = _values(buffer)
        self.log.append(
            {
                "kind": kind,
                "peer": peer,
                "tag": tag,
                "bytes": values.nbytes if values is not None else len(pickle.dumps(buffer)),
                "values": values,
                "call": buffer if kind == "collective" else "",
                "state": self.data.copy(),
            }
        )

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.note("send", dest, tag, obj)
        super().send(obj, dest, tag)

    def recv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None) -> Any:
        status = status or MPI.Status()
        received = super().recv(buf, source, tag, status)
        self.note("recv", status.source, status.tag, received)
        return received

    def sendrecv(
        self, sendobj, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE,
        recvtag=MPI.ANY_TAG, status=None,
    ) -> Any:  # fmt: skip
        self.note("send", dest, sendtag, sendobj)
        return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.note("send", dest, tag, buf)
        super().Send(buf, dest, tag)

    def Recv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None) -> None:
        status = status or MPI.Status()
        super().Recv(buf, source, tag, status)
        self.note("recv", status.source, status.tag, buf)

    def Sendrecv(
        self, sendbuf, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE,
        recvtag=MPI.ANY_TAG, status=None,
    ) -> None:  # fmt: skip
        self.note("send", dest, sendtag, sendbuf)
        super().Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> patient.Request:
        self.note("send", dest, tag, obj)
        return super().isend(obj, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> patient.Request:
        self.note("send", dest, tag, buf)
        return super().Isend(buf, dest, tag)

    def Irecv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) -> patient.Request:
        request = _Noted(super().Irecv(buf, source, tag))
        request.arrived = lambda status: self.note("recv", status.source, status.tag, buf)
        return request

    def meet(self, call: str, root: int = -1) -> None:
        self.note("collective", -1, 0, call)
        super().meet(call, root)


class _Noted(patient.Request):
    """A receive that is written down when it is waited for."""

    arrived: Callable | None = None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        status = status or MPI.Status()
        done = super().Wait(status)
        if self.arrived is not None:
            self.arrived, arrived = None, self.arrived
            arrived(status)
        return done

    wait = Wait


def _values(buffer: Any) -> np.ndarray | None:
    """The numbers in a buffer as mpi4py takes them, or None for another object."""
    if isinstance(buffer, list | tuple) and buffer and isinstance(buffer[0], np.ndarray):
        buffer = buffer[0]
    return np.array(buffer).ravel() if isinstance(buffer, np.ndarray) else None


def marked(rank: int, size: int) -> np.ndarray:
    """The data of one rank: every element tells whose it is, and which."""
    return float(BASE) ** rank + (np.arange(size * PER_CHUNK) + 1) / FINE


def play(function: Callable, members: int) -> dict[str, Any] | None:
    """Call `function(comm, data)` on the first `members` ranks; what happened on this one."""
    everybody = patient.plain(MPI.COMM_WORLD)
    part = patient.Comm(MPI.COMM_WORLD).Split(0 if everybody.rank < members else MPI.UNDEFINED)
    if part == MPI.COMM_NULL:
        return None
    data = marked(part.rank, members)
    comm = RecordingComm(part).watch(data)
    start = data.copy()
    result = function(comm, data)
    if isinstance(result, np.ndarray) and result is not data and result.shape == data.shape:
        data[:] = result  # returned instead of written in place; just as good
    return {"log": comm.log, "start": start, "end": data.copy()}
