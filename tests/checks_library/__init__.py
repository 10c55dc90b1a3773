"""All programs that prove the checks, right and wrong, and the recordings of their runs."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks_library.right import all_right
from hvdlab.check.course import Script
from hvdlab.check.judge import judge
from hvdlab.check.mistakes import variants
from hvdlab.check.run import Recording, observe
from hvdlab.check.verdict import Verdict

# What comes before these folders in a path tells of the machine, and nothing of the run.
_PLACE = re.compile(r"/[\w./+-]*/(?=(?:site-packages|hvdlab|hvdlite|rank-\d)/)")


@dataclass(frozen=True)
class Program:
    """A program of the library; `breaks` is empty for a right one."""

    script: Script
    name: str
    what: str
    breaks: tuple[str, ...]
    text: str

    @property
    def file(self) -> str:
        """The name of its recording."""
        return f"{self.script.name.removesuffix('.py')}-{self.name}.json.gz"

    def record(self, **options: Any) -> tuple[Recording, float]:
        """Run it with options of `observe`; the recording, and how many seconds that took."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, self.script.name)
            path.write_text(self.text)
            start = time.monotonic()
            return observe(path, self.script.phases(), **options), time.monotonic() - start

    def judge(self, recording: Recording) -> Verdict:
        """The verdict on a recording of it."""
        return judge(self.script, self.script.name, recording)

    def is_as_expected(self, verdict: Verdict) -> bool:
        """Whether a right program passes, and a wrong one fails at its own steps and no other."""
        if not self.breaks:
            return verdict.done
        return set(verdict.failing()) == set(self.breaks)


def library() -> list[Program]:
    """All programs, the right ones first."""
    right = [
        Program(each.script, f"right-{each.name}", each.name, (), each.apply())
        for each in all_right()
    ]
    wrong = [
        Program(s, m.name, m.what, m.breaks, m.apply(s, s.solution.read_text()))
        for s, m in variants()
    ]
    return right + wrong


def save(path: Path, recording: Recording, seconds: float) -> None:
    """Write a recording."""
    told = _PLACE.sub("", json.dumps(vars(recording)))
    text = json.dumps({"seconds": round(seconds, 1), "recording": told})
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load(path: Path) -> tuple[Recording, float]:
    """Read what `save` wrote."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    return Recording(**json.loads(found["recording"])), found["seconds"]
