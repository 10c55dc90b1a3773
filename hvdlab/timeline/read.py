"""Read a timeline: Chrome trace events as hvdlite and Horovod write them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_SIZES = {"float64": 8, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
          "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip


# What a table tells of each phase.
COLUMNS = ("phase", "time (ms)", "calls", "tensors", "tensors a call", "data")


@dataclass(frozen=True)
class Span:
    """What a tensor did from `start` to `end` (seconds); `depth` 1 lies inside of depth 0.

    `call` numbers the calls: tensors that were fused share it. `bytes` is known of whole
    collectives (depth 0), after they have finished; of a bucket's tensors it is that of all
    `members` together.
    """

    tensor: str
    phase: str
    start: float
    end: float
    depth: int
    call: int
    bytes: int = 0
    finished: bool = True
    members: int = 1


@dataclass(frozen=True)
class Arrival:
    """The moment (seconds) at which a rank asked for the collective on a tensor."""

    tensor: str
    rank: int
    when: float


@dataclass(frozen=True)
class Phase:
    """All spans of one name: seconds in which at least one went on; calls, tensors, bytes.

    `bytes` is 0 where it is not known.
    """

    name: str
    seconds: float
    calls: int
    tensors: int
    bytes: int

    @property
    def row(self) -> tuple[str, ...]:
        """As COLUMNS of a table."""
        times = (f"{1e3 * self.seconds:,.1f}", f"{self.calls:,}", f"{self.tensors:,}")
        return (self.name, *times, f"{self.tensors / self.calls:,.1f}", in_bytes(self.bytes))


@dataclass(frozen=True)
class Timeline:
    """What a file told, times counted from its first event."""

    spans: tuple[Span, ...]
    arrivals: tuple[Arrival, ...]
    truncated: bool
    first: float
    last: float

    @property
    def seconds(self) -> float:
        """From the first to the last event."""
        return self.last - self.first

    @property
    def unfinished(self) -> tuple[Span, ...]:
        """What was going on when the file ended."""
        return tuple(span for span in self.spans if not span.finished)

    def part(self, start: float, end: float, tensors: str = "", most: int = 1 << 62) -> Timeline:
        """What touches start to end (seconds), of tensors with a name like this.

        At most `most` spans; `last` tells how far they reach.
        """
        spans = [s for s in self.spans if s.end >= start and s.start <= end and tensors in s.tensor]
        if len(spans) > most:
            end = spans[most].start
            spans = spans[:most]
        names = {span.tensor for span in spans}
        arrivals = [a for a in self.arrivals if start <= a.when <= end and a.tensor in names]
        return Timeline(tuple(spans), tuple(arrivals), self.truncated, start, min(end, self.last))

    def phases(self) -> list[Phase]:
        """The phases in the order of a collective's life: what each took altogether."""
        found = []
        for name in dict.fromkeys(span.phase for span in self.spans):
            spans = [span for span in self.spans if span.phase == name]
            calls: dict[int, list[Span]] = {}
            for span in spans:
                calls.setdefault(span.call, []).append(span)
            sizes = [_bytes_of_call(call) for call in calls.values()]
            known = sum(sizes) if all(sizes) else 0
            found.append(Phase(name, _union(spans), len(calls), len(spans), known))
        return found

    def late(self) -> dict[int, tuple[int, float]]:
        """For each rank: how often it came last, and how long (seconds) the first rank waited."""
        ranks = sorted({arrival.rank for arrival in self.arrivals})
        found = {rank: [0, 0.0] for rank in ranks}
        rounds: dict[str, dict[int, float]] = {}
        seen: set[tuple] = set()

        def close(met: dict[int, float]) -> None:
            moment = tuple(sorted(met.items()))
            if len(met) < len(ranks) or len(ranks) < 2 or moment in seen:
                return  # fused tensors were asked for in one moment: it counts once
            seen.add(moment)
            last = max(met, key=met.__getitem__)
            found[last][0] += 1
            found[last][1] += met[last] - min(met.values())

        for arrival in self.arrivals:
            met = rounds.setdefault(arrival.tensor, {})
            if arrival.rank in met:
                close(met)
                met.clear()
            met[arrival.rank] = arrival.when
        for met in rounds.values():
            close(met)
        return {rank: (times, seconds) for rank, (times, seconds) in found.items()}


def load(path: str | os.PathLike[str]) -> Timeline:
    """Read a timeline, also one that ends in the middle.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds no trace events.
    """
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    if not text.lstrip().startswith("["):
        raise ValueError(f"{path} is no timeline: it doesn't begin with a list of events")
    events = [event for event in _events(text) if "ph" in event]
    truncated = not text.rstrip().endswith("]")
    if not events and text.strip(" \n[]"):
        raise ValueError(f"{path} is no timeline: there is no trace event in it")
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    moments = [e["ts"] for e in events if "ts" in e]
    zero = min(moments, default=0.0)
    last = (max(moments, default=0.0) - zero) / 1e6
    spans: list[Span] = []
    arrivals: list[Arrival] = []
    stacks: dict[object, list[int]] = {}
    call, before = 0, ""
    for event in events:
        kind, tensor = event.get("ph"), names.get(event.get("pid"))
        if tensor is None or kind not in ("B", "E", "X"):
            continue
        when = (event["ts"] - zero) / 1e6
        stack = stacks.setdefault(event["pid"], [])
        if kind == "X":
            if re.fullmatch(r"\d+", event["name"]):
                arrivals.append(Arrival(tensor, int(event["name"]), when))
        elif kind == "B":
            # Tensors that begin the same phase one right after the other are one call.
            if event["name"] != before:
                call += 1
            before = event["name"]
            number = spans[stack[-1]].call if stack and len(stack) > 1 else call
            spans.append(Span(tensor, event["name"], when, last, len(stack), number, 0, False))
            stack.append(len(spans) - 1)
        elif stack:
            if len(stack) > 1 or event.get("args"):
                before = ""
            place = stack.pop()
            args = event.get("args") or {}
            members = max(1, int(args.get("members", 1)))
            spans[place] = replace(
                spans[place], end=when, bytes=_size(args), finished=True, members=members
            )
    spans.sort(key=lambda span: (span.start, span.depth))
    return Timeline(tuple(spans), tuple(arrivals), truncated, 0.0, last)


def _events(text: str) -> Iterator[dict]:
    """The events one by one, up to the first that is cut off."""
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    gap = re.compile(r"[\s,]*")
    while True:
        at = gap.match(text, at).end()
        if at >= len(text) or text[at] != "{":
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield event


def _size(args: dict) -> int:
    """Bytes of a tensor from the dtype and the shape that the last event of its collective has."""
    shape = re.findall(r"\d+", str(args.get("shape", "")))
    if not shape or not args.get("dtype"):
        return 0
    return math.prod(map(int, shape)) * _SIZES.get(str(args["dtype"]), 4)


def _bytes_of_call(spans: list[Span]) -> int:
    """0 if it is not known: of a part of a bucket, which names its whole size at each tensor."""
    buckets = [span for span in spans if span.members > 1]
    if len(buckets) % max(1, *(span.members for span in spans)):
        return 0
    return round(sum(span.bytes / span.members for span in spans))


def in_bytes(number: int) -> str:
    """Such as "4.58 MiB" or "44 KiB"; "–" for 0, which is not known."""
    for unit, size, digits in (("MiB", 1 << 20, 2), ("KiB", 1 << 10, 1)):
        if number >= size:
            return f"{number / size:,.{digits}f} {unit}"
    return f"{number} B" if number else "–"


def _union(spans: list[Span]) -> float:
    total, reached = 0.0, -math.inf
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total
