"""Checks of many scripts, some at a time, in warm interpreters."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ..several import several
from ..warm import Nest
from . import check
from .course import CheckError, script_of
from .run import IMPORTS, warm
from .verdict import Verdict


def check_many(
    lab: str, scripts: Sequence[Path], limit: float
) -> Iterator[tuple[Path, Verdict | CheckError]]:
    """The verdict on each script, or why there is none, as soon as it is known; with a bar.

    As many run at a time as there are cores: those that hang use none. Each has a warm process
    for itself, so that none can touch what belongs to another one.
    """
    own = threading.local()
    with ExitStack() as stack:  # an interrupt: the warm processes end, and with them the checks

        def one(path: Path) -> Verdict | CheckError:
            nests: dict[tuple[str, ...], Nest] = vars(own).setdefault("nests", {})
            try:
                modules = IMPORTS[script_of(lab, path).framework]
                if modules not in nests or not nests[modules].is_up:
                    nests[modules] = stack.enter_context(warm(*modules))
                return check(lab, path, limit, nests[modules])
            except CheckError as error:
                return error

        yield from several(one, scripts, "checking", "script")
