"""The verdict on a script: for each step whether it is done, and what was seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .course import Step

DONE, OPEN, WRONG, UNSEEN = "done", "open", "wrong", "unseen"
SIGNS = {DONE: "✔", OPEN: "○", WRONG: "✘", UNSEEN: "?"}
WORDS = {DONE: "done", OPEN: "not done", WRONG: "not right", UNSEEN: "not seen"}


@dataclass
class StepVerdict:
    """What became of one step.

    result: "done"; "open", nothing of it was seen; "wrong", what was seen is against it;
        "unseen", the run ended before it could be seen.
    seen: the evidence, on each rank. look: where to look; empty where the step is done.
    """

    number: int
    key: str
    title: str
    result: str
    seen: str
    why: str
    look: str
    points: int
    of: int

    @classmethod
    def of_step(cls, step: Step, result: str, seen: str) -> StepVerdict:
        """The verdict with the step's own words."""
        done = result == DONE
        return cls(
            step.number, step.key, step.title, result, seen, "" if done else step.why,
            "" if done else step.look, step.points if done else 0, step.points,
        )  # fmt: skip


@dataclass
class Verdict:
    """The verdict on a script. `ended` says how the run ended if not well, `outside` what the
    script tried to do where it may not."""

    lab: str
    script: str
    version_of: str
    steps: list[StepVerdict] = field(default_factory=list)
    ended: str = ""
    outside: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether every step is done, and the run ended well."""
        return all(step.result == DONE for step in self.steps) and not self.ended

    @property
    def points(self) -> int:
        """The sum of the steps' points."""
        return sum(step.points for step in self.steps)

    @property
    def of(self) -> int:
        """The most that can be had."""
        return sum(step.of for step in self.steps)

    def __getitem__(self, key: str) -> StepVerdict:
        """The step with a key such as "broadcast", or a KeyError."""
        return {step.key: step for step in self.steps}[key]

    def failing(self) -> list[str]:
        """The keys of the steps that are open or wrong."""
        return [step.key for step in self.steps if step.result in (OPEN, WRONG)]

    def to_json(self) -> str:
        """For programs."""
        more: dict[str, Any] = {"done": self.done, "points": self.points, "of": self.of}
        return json.dumps({**asdict(self), **more}, indent=2)

    def brief(self) -> list[tuple[str, str]]:
        """At most ten lines, each with its result: the cause first, then what to look at."""
        done = sum(step.result == DONE for step in self.steps)
        course = f" (checked as lab {self.lab}'s {self.version_of})" if self.lab else ""
        head = f"{self.script}: {done} of {len(self.steps)} steps done, "
        lines = [(DONE if self.done else "", f"{head}{self.points} of {self.of} points{course}")]
        wrong = [step for step in self.steps if step.result in (OPEN, WRONG)]
        if self.ended and self.ended not in [step.seen for step in wrong]:
            lines.append((WRONG, self.ended))
        lines += [(WRONG, f"refused: {line}") for line in self.outside[:1]]
        first = max(1, (8 - len(lines)) // 2)
        for step in wrong[:first]:
            title = f"{SIGNS[step.result]} step {step.number}, {step.title}: {WORDS[step.result]}"
            lines += [(step.result, f"{title}: {step.seen}"), ("", f"  look at: {step.look}")]
        rest = [step.title for step in wrong[first:]]
        unseen = [step.title for step in self.steps if step.result == UNSEEN]
        if rest:
            lines.append((OPEN, f"also not done, or not right: {', '.join(rest)}"))
        if unseen:
            lines.append((UNSEEN, f"{SIGNS[UNSEEN]} {WORDS[UNSEEN]}: {', '.join(unseen)}"))
        return lines

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.brief())
