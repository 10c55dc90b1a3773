"""What the board knows of a class: bounded, whatever is sent to it."""

from __future__ import annotations

import json
import os
import re
import stat
import time
import unicodedata
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..handout import source

MOST_STUDENTS, MOST_EXERCISES = 200, 150
PER_MINUTE = 60  # messages of one student
PER_SECOND = 300  # messages of all
STUCK_AFTER = 3  # times that the same check failed
NOW = 15 * 60.0  # seconds for which a mistake counts as one of now
_LONGEST = {"name": 40, "lab": 2, "exercise": 60, "sentence": 200}
_RESULTS = ("joined", "done", "open", "wrong")
_AT_ONCE, _IN_ALL = 16 << 10, 1 << 20  # bytes of one student's file in a shared folder


@dataclass
class Exercise:
    """The last verdict on it, how often it failed since it was not wrong, and when that was."""

    result: str
    sentence: str
    when: float
    failures: int = 0


@dataclass
class Student:
    """Verdicts by (lab, exercise); `seen` is when the last message came."""

    name: str
    seen: float
    verdicts: dict[tuple[str, str], Exercise] = field(default_factory=dict)
    times: deque[float] = field(default_factory=lambda: deque(maxlen=PER_MINUTE))

    def stuck(self) -> list[tuple[str, str, Exercise]]:
        """Labs, exercises and verdicts where the same check failed again and again."""
        found = [(*key, one) for key, one in self.verdicts.items()]
        return [each for each in found if each[2].failures >= STUCK_AFTER]


@dataclass(frozen=True)
class Mistake:
    """A sentence that several students have read."""

    lab: str
    exercise: str
    sentence: str
    students: int


class Room:
    """All students; `silence` is in seconds."""

    def __init__(self, silence: float = 600.0, clock: Callable[[], float] = time.time):
        self.silence, self.clock = silence, clock
        self.students: dict[str, Student] = {}
        self._last: deque[float] = deque(maxlen=PER_SECOND)
        self._read: dict[str, int] = {}

    def take(self, message: object) -> str:
        """Take a message in; returns a word for the student.

        Raises:
            ValueError: it is none.
            OverflowError: too many students, or too much in a short time.
        """
        told = _clean(message)
        now = self.clock()
        student = self.students.get(told["name"])
        if student is None and len(self.students) >= MOST_STUDENTS:
            raise OverflowError(f"the board holds {MOST_STUDENTS} students")
        new = student is None
        student = student or Student(told["name"], now)
        for times, seconds in ((student.times, 60.0), (self._last, 1.0)):
            if len(times) == times.maxlen and now - times[0] < seconds:
                raise OverflowError("too many messages at once")
        student.times.append(now)
        self._last.append(now)
        student.seen = now
        self.students[student.name] = student
        if told["result"] == "joined":
            return "" if new else f"the name {student.name} is on the board already; is that you?"
        key = (told["lab"], told["exercise"])
        before = student.verdicts.get(key)
        if before is None and len(student.verdicts) >= MOST_EXERCISES:
            raise OverflowError(f"the board holds {MOST_EXERCISES} exercises of a student")
        failures = before.failures if before else 0
        failures = failures + 1 if told["result"] == "wrong" else 0
        student.verdicts[key] = Exercise(told["result"], told["sentence"], now, failures)
        return ""

    def read(self, folder: Path) -> None:
        """Take in what students have written into a shared folder since the last time."""
        for name in sorted(os.listdir(folder))[: 2 * MOST_STUDENTS]:
            if name.endswith(".jsonl"):
                self._read_file(folder / name)

    def _read_file(self, path: Path) -> None:
        at = self._read.get(path.name, 0)
        try:
            # A student's file may be a link, or a pipe that nobody writes to.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with open(file, "rb") as lines:
            if not stat.S_ISREG(os.fstat(file).st_mode) or at > _IN_ALL:
                return
            lines.seek(at)
            found = lines.read(_AT_ONCE)
        if b"\n" not in found and len(found) == _AT_ONCE:
            found += b"\n"  # a line that long is nobody's verdict
        for line in found.splitlines(keepends=True):
            try:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self.take(json.loads(line))
            except OverflowError:
                break  # the next time
            except (ValueError, RecursionError):
                pass
            at += len(line)
        self._read[path.name] = at

    def labs(self) -> list[str]:
        """The labs that somebody has worked at, the latest first."""
        latest: dict[str, float] = {}
        for student in self.students.values():
            for (lab, _), one in student.verdicts.items():
                latest[lab] = max(latest.get(lab, 0), one.when)
        return sorted(latest, key=lambda lab: -latest[lab])

    def exercises(self, lab: str, others: bool = True) -> list[str]:
        """Those of the course, in its order, and with `others` whatever else came."""
        if not others:
            return self._course.get(lab, [])
        keys = [key for student in self.students.values() for key in student.verdicts]
        more = sorted({exercise for one, exercise in keys if one == lab})
        return list(dict.fromkeys([*self._course.get(lab, []), *more]))

    def mistakes(self, at_least: int = 1, most: int = 3) -> list[Mistake]:
        """The sentences that the most students have before them now, the commonest first."""
        counts: Counter[tuple[str, str, str]] = Counter()
        words: dict[tuple[str, str, str], str] = {}
        since = self.clock() - NOW
        for student in self.students.values():
            for (lab, exercise), one in student.verdicts.items():
                if one.result == "wrong" and one.when > since:
                    kind = (lab, exercise, re.sub(r"\d[\d.,]*", "#", one.sentence))
                    counts[kind] += 1
                    words.setdefault(kind, one.sentence)
        common = [(kind, n) for kind, n in counts.most_common(most) if n >= at_least]
        return [Mistake(kind[0], kind[1], words[kind], n) for kind, n in common]

    def silent(self, student: Student, lab: str) -> int:
        """Minutes for which nothing came from a student; 0 if it is short, or all is done."""
        exercises = self._course.get(lab, [])
        done = [student.verdicts.get((lab, one)) for one in exercises]
        if exercises and all(one and one.result == "done" for one in done):
            return 0
        quiet = self.clock() - student.seen
        return int(quiet / 60) if quiet >= self.silence else 0

    @cached_property
    def _course(self) -> dict[str, list[str]]:
        """The names of each lab's checks, in the order of its notebook."""
        found = {}
        for path in sorted((source() / "labs").glob("[0-9][0-9]_*/*.ipynb")):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            text = "".join("".join(cell["source"]) for cell in cells)
            found[path.name[:2]] = re.findall(r'with Check\("([^"]+)"\)', text)
        return found


def _clean(message: object) -> dict[str, str]:
    """The known parts of a message, as short texts of one line."""
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    told = {}
    for key, longest in _LONGEST.items():
        text = message.get(key, "")
        if not isinstance(text, str):
            raise ValueError(f"{key} must be a text")
        # No control characters, and none that turn the direction of what follows.
        plain = (c if unicodedata.category(c)[0] != "C" else " " for c in text[:1000])
        told[key] = " ".join("".join(plain).split())[:longest]
    if not re.fullmatch(r"[0-9]{2}", told["lab"]):
        told["lab"] = ""
    told["result"] = str(message.get("result"))
    if told["result"] not in _RESULTS or not told["name"]:
        raise ValueError(f"a message has a name, and as its result one of {', '.join(_RESULTS)}")
    if told["result"] != "joined" and not told["exercise"]:
        raise ValueError("a verdict names its exercise")
    return told
