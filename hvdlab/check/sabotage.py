"""`hvdlab sabotage`: put one common mistake into a working script, to be found."""

from __future__ import annotations

import random
import re
import zlib
from pathlib import Path

from .course import STEP, CheckError, Script, python_of, script_of
from .mistakes import Mistake, fitting

_NOTE = "# A mistake is hidden in this file. hvdlab sabotage --reveal {name} tells which.\n"


def known_as(path: Path) -> Script:
    """Of which script of the course a file is a version, whatever its lab.

    Raises CheckError if it can't be read or is no Python.
    """
    text = python_of(path)
    if "import torch" in text:
        return script_of("06", path)
    return script_of("07" if "compat.v1" in text or "GradientTape" in text else "05", path)


def choose(path: Path, name: str | None, seed: int | None = None) -> tuple[Script, Mistake]:
    """The mistake of that name, or any one that fits the file and shows on every machine.

    Raises CheckError if there is none, or if the file isn't converted.
    """
    script = known_as(path)
    if not {"horovod", "hvdlite"} & set(re.findall(r"\w+", path.read_text())):
        raise CheckError(
            f"{path} is not converted: a mistake shows only in a script that works on 2 ranks"
        )
    found = fitting(script, path)
    if name is not None:
        found = [each for each in found if each.name == name]
    else:  # GPUs and many cores are not everywhere
        found = [each for each in found if not {"device", "threads"} & set(each.breaks)]
    if not found:
        what = f"no mistake {name!r} fits" if name else "no mistake fits"
        raise CheckError(
            f"{what} into {path}: it must look like scripts/solutions/{script.name} where the "
            f"mistake goes; hvdlab sabotage {path} --list shows what fits"
        )
    return script, random.Random(seed).choice(found)


def hide(path: Path, target: Path, name: str | None = None, seed: int | None = None) -> Mistake:
    """Write the script with a mistake to `target`, and the answer, unreadable at a glance, beside.

    Raises CheckError if no mistake fits, or if the target is there and was not written by this.
    """
    if target.exists() and not _answer(target).exists():
        raise CheckError(f"{target} is there already, and stays as it is: name another with --out")
    script, mistake = choose(path, name, seed)
    text = mistake.apply(script, path.read_text())
    target.write_text(_NOTE.format(name=target.name) + text)
    answer = f"{mistake.name}\n{mistake.what}\n{' '.join(mistake.breaks)}"
    _answer(target).write_text(zlib.compress(answer.encode()).hex() + "\n")
    return mistake


def reveal(target: Path) -> str:
    """What was hidden in a script. Raises CheckError if nothing was."""
    try:
        text = zlib.decompress(bytes.fromhex(_answer(target).read_text())).decode()
    except (OSError, ValueError, zlib.error):
        raise CheckError(f"nothing is known about a mistake in {target}") from None
    name, what, breaks = text.splitlines()
    steps = ", ".join(f"{STEP[key].number} ({STEP[key].title})" for key in breaks.split())
    return f"{name}: {what}; it breaks step {steps}"


def _answer(target: Path) -> Path:
    return target.with_name(f".{target.name}.mistake")
