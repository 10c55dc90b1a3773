"""The hang that explains itself: from the ranks' notes to sentences."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

Note = dict[str, Any]


def read_notes(folder: Path, running: list[int]) -> dict[int, Note]:
    """What each rank that still runs the cell is doing; an empty note where nothing is known."""
    notes: dict[int, Note] = {}
    for rank in running:
        try:
            notes[rank] = json.loads((folder / f"rank-{rank}.json").read_text())
        except (OSError, ValueError):
            notes[rank] = {}
    return notes


def explain(notes: dict[int, Note], ended: dict[int, str], now: float | None = None) -> str:
    """Say who waits where, since when and for whom; "" if nobody waits.

    `ended` tells of the ranks that are done with the cell: "finished" or "failed in".
    """
    now = time.time() if now is None else now
    if not any(note.get("call") for note in notes.values()):
        return ""
    lines = []
    for rank, note in sorted(notes.items()):
        if not note:
            lines.append(f"rank {rank} has not said what it does")
            continue
        where = f"{note['file']}, line {note['line']}" if note["file"] else f"line {note['line']}"
        if not note.get("call"):
            lines.append(f"rank {rank} works at {where}: {note['code']}")
            continue
        for_whom = _peers(note, notes, ended)
        lines.append(
            f"rank {rank} waits in {note['call']}{_for(for_whom, ended)}, since "
            f"{max(0, now - note['since']):.0f} s, at {where}: {note['code']}"
        )
    for rank, how in sorted(ended.items()):
        lines.append(f"rank {rank} has {how} this cell")
    return "\n".join(lines + _moral(notes, ended))


def _peers(note: Note, notes: dict[int, Note], ended: dict[int, str]) -> list[int] | None:
    """The ranks that the one of this note waits for; None if that can't be known."""
    if note["peers"] is None:  # a collective: all that are not in the same call
        others = [r for r, other in notes.items() if other.get("call") != note["call"]]
        return sorted([*others, *ended]) or None
    return note["peers"] or None


def _for(peers: list[int] | None, ended: dict[int, str]) -> str:
    if not peers:
        return ""
    told = [
        f"{rank} (which has {ended[rank]} this cell)" if rank in ended else str(rank)
        for rank in peers
    ]
    return f" for {'rank' if len(peers) == 1 else 'ranks'} {', '.join(told)}"


def _moral(notes: dict[int, Note], ended: dict[int, str]) -> list[str]:
    """What follows from it: a circle, or a rank that will not come."""
    if not all(note.get("call") for note in notes.values()):
        return []
    waits_for = {rank: _peers(note, notes, ended) for rank, note in notes.items()}
    gone = sorted({p for peers in waits_for.values() for p in peers or [] if p in ended})
    if gone:
        who = ", ".join(f"rank {rank}" for rank in gone)
        return [f"{who} will not come any more: this can't end by itself."]
    if all(peers and set(peers) <= set(notes) for peers in waits_for.values()):
        return ["Each waits for another one that waits: a deadlock. It can't end by itself."]
    return []
