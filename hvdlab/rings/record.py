"""From the logs of all ranks to messages in their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..engines import Engines

# How the ranks' data is marked: see `comm`, which only the ranks import, as it starts MPI.
BASE = 8
FINE = 4096
PER_CHUNK = 3  # elements; small, since only what moves matters

Counts = tuple[int, ...]  # how often each rank's number is in a sum


@dataclass
class Message:
    """One message. `step` counts from 0: how many messages had to arrive one after the other
    before this one could be sent. `content`: for each chunk in it, whose numbers it sums up.
    """

    source: int
    target: int
    bytes: int
    step: int
    content: dict[int, Counts]


@dataclass
class Recording:
    """What an allreduce on `size` ranks did. `states[s][r][c]`: rank r's chunk c before step s."""

    size: int
    data_bytes: int
    messages: list[Message]
    states: list[list[list[Counts]]]
    right: list[bool]  # of each rank: does it have the sum of all?
    collectives: list[str] = field(default_factory=list)  # MPI's own calls that it used

    @property
    def steps(self) -> int:
        """How many steps follow one another."""
        return 1 + max((message.step for message in self.messages), default=-1)

    @property
    def bytes_sent(self) -> list[int]:
        """Of each rank, all messages together."""
        return [sum(m.bytes for m in self.messages if m.source == r) for r in range(self.size)]

    @property
    def bytes_received(self) -> list[int]:
        """Of each rank, all messages together."""
        return [sum(m.bytes for m in self.messages if m.target == r) for r in range(self.size)]

    @property
    def messages_sent(self) -> list[int]:
        """Of each rank."""
        return [sum(m.source == r for m in self.messages) for r in range(self.size)]

    @property
    def least(self) -> float:
        """Bytes that the busiest rank must send in any allreduce: 2 (size - 1) / size of all."""
        return 2 * (self.size - 1) / self.size * self.data_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was sent."""
        return not self.messages and not self.collectives


def record(
    ranks: Engines, function: str, size: int | None = None, limit: float = 20
) -> Recording | None:
    """Let the first `size` ranks run `function(comm, data)`, which the engines know by that name.

    Returns None if it doesn't end within `limit` seconds; who waited for whom is shown then.

    Raises:
        RanksFailed: a rank raised an error.
    """
    size = size or ranks.size
    ranks.push(_hvdlab_log=None)
    ranks.run(
        f"import hvdlab.rings.comm\n_hvdlab_log = hvdlab.rings.comm.play({function}, {size})",
        limit=limit,
    )
    logs = ranks.pull("_hvdlab_log")[:size]
    return None if any(log is None for log in logs) else assemble(logs)


def assemble(logs: list[dict[str, Any]]) -> Recording:
    """Match each send with its receive, and order them by what depends on what."""
    size = len(logs)
    messages = _in_order(logs)
    recording = Recording(size, logs[0]["start"].nbytes, messages, [], [])
    for log in logs:
        wanted = sum(float(BASE) ** r for r in range(size)) + _places(size) * size
        recording.right.append(bool(np.allclose(log["end"], wanted, rtol=0, atol=0.2 / FINE)))
    events = [event for log in logs for event in log["log"]]
    recording.collectives = sorted({e["call"] for e in events if e["kind"] == "collective"})
    for step in range(recording.steps + 1):
        recording.states.append([_state(log, rank, step, size) for rank, log in enumerate(logs)])
    return recording


def _in_order(logs: list[dict[str, Any]]) -> list[Message]:
    """Give each event the step it belongs to; sends and receives of a pair meet in order."""
    size = len(logs)
    sent: dict[tuple[int, int, int], list[int]] = {}
    place, depth = [0] * size, [0] * size
    messages = []
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            while place[rank] < len(log["log"]):
                event = log["log"][place[rank]]
                if event["kind"] == "send":
                    event["step"] = depth[rank]
                    key = (rank, event["peer"], event["tag"])
                    sent.setdefault(key, []).append(depth[rank])
                    content = _content(event["values"], size)
                    messages.append(
                        Message(rank, event["peer"], event["bytes"], depth[rank], content)
                    )
                elif event["kind"] == "recv":
                    waiting = sent.get((event["peer"], rank, event["tag"]))
                    if not waiting:
                        break  # its sender comes later in this round
                    event["step"] = waiting.pop(0)
                    depth[rank] = max(depth[rank], event["step"] + 1)
                else:
                    event["step"] = depth[rank]
                place[rank] += 1
                moved = True
    return sorted(messages, key=lambda m: (m.step, m.source))


def _state(log: dict[str, Any], rank: int, step: int, size: int) -> list[Counts]:
    """A rank's data before the step: as it was when its events of that step began."""
    state = log["end"]
    for event in log["log"]:
        if event.get("step", 0) >= step and event["kind"] == "send":
            state = event["state"]
            break
        if event.get("step", 0) >= step and event["kind"] == "recv":
            # What arrives may lie in the data already; the state before it is the last known.
            earlier = [e for e in log["log"] if e.get("step", 0) < step and e is not event]
            state = earlier[-1]["state"] if earlier else log["start"]
            break
    found = _content(state, size)
    return [found.get(chunk, (0,) * size) for chunk in range(size)]


def _content(values: np.ndarray | None, size: int) -> dict[int, Counts]:
    """For each chunk that has numbers here: whose numbers are in its sum, and how often."""
    found: dict[int, Counts] = {}
    for value in [] if values is None or values.dtype.kind != "f" else values.tolist():
        whole = int(value)
        counts = tuple(whole // BASE**rank % BASE for rank in range(size))
        total = sum(counts)
        if not total or not 0 <= value < BASE**size:
            continue
        element = round((value - whole) * FINE / total) - 1
        if 0 <= element < size * PER_CHUNK:
            found.setdefault(element // PER_CHUNK, counts)
    return found


def _places(size: int) -> np.ndarray:
    return (np.arange(size * PER_CHUNK) + 1) / FINE
