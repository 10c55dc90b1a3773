"""Find a data set on this machine, or fetch it: the order of the sources."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from . import lock
from .catalog import DataError, DataSet
from .files import Buffer, find_set, read_checked, write_whole
from .lock import say
from .sources import SOURCES, SourceError

ORDER = ("folder", "cache", *SOURCES)


@dataclass
class Found:
    """The four files, checked and open."""

    contents: dict[str, Buffer]
    folder: Path
    origin: str


def cache_folder(spec: DataSet) -> Path:
    """Where fetched files are kept: the user's cache folder, XDG_CACHE_HOME honoured."""
    return platformdirs.user_cache_path("hvdlite") / "data" / spec.name


def bundled_folder(spec: DataSet) -> Path:
    """Where a bundle has put the files: see hvdlab.bundle."""
    return Path(sys.prefix) / "share" / "hvdlite" / "data" / spec.name


def chosen_sources(sources: list[str] | None) -> list[str]:
    """The sources to try, in order: the argument, HVDLITE_DATA_SOURCES, or all.

    Raises:
        DataError: one of the names is unknown.
    """
    if sources is None:
        named = os.environ.get("HVDLITE_DATA_SOURCES")
        sources = named.split(",") if named is not None else list(ORDER)
    names = [name.strip() for name in sources if name.strip()]
    for name in names:
        if name not in ORDER:
            raise DataError(f"no source is called {name!r}; there are {', '.join(ORDER)}")
    if not os.environ.get("HVDLITE_DATA_MIRROR") and names != ["mirror"]:
        names = [name for name in names if name != "mirror"]
    return [name for name in ORDER if name in names]


def find_or_fetch(
    spec: DataSet,
    data_dir: str | os.PathLike[str] | None = None,
    sources: list[str] | None = None,
    believe_failures: bool = False,
) -> Found:
    """The set's files from the first source that has them all, each checked by SHA-256.

    Any number of processes may call this at once: one fetches, the others wait for it and
    get the same files or the same error.

    Args:
        data_dir: a folder to look in first; HVDLITE_DATA_DIR by default.
        sources: names of the sources to use; all by default.
        believe_failures: take a failure that another process had within the last minute
            for this one's, too. Ranks of one job do, so that all of them agree.

    Raises:
        DataError: no source has the set. Says what each one answered.
    """
    names = chosen_sources(sources)
    notes: list[str] = []
    started = time.time()
    folder = data_dir or os.environ.get("HVDLITE_DATA_DIR")
    if "folder" in names and folder:
        found = _look(spec, Path(folder).expanduser(), "your folder", notes)
        if found:
            return found
        for note in notes:
            say(note)
    cache = cache_folder(spec)
    for place, called in ((cache, "the cache"), (bundled_folder(spec), "the bundle")):
        if "cache" in names and place.is_dir():
            found = _look(spec, place, called, [])
            if found:
                return found
    remote = [name for name in names if name in SOURCES]
    if remote:
        since = started - lock.FAILURE_LASTS_S if believe_failures else started
        return _fetch(spec, cache, remote, since, notes)
    where = f"the cache {cache} has no complete {spec.title}" if "cache" in names else ""
    raise DataError("\n".join([*notes, where or f"no source is left to ask for {spec.title}"]))


def _look(spec: DataSet, folder: Path, called: str, notes: list[str]) -> Found | None:
    """The set from a folder if all of it is there and right; otherwise notes say what isn't."""
    paths = find_set(folder, spec)
    for role, file in spec.files.items():
        if role not in paths:
            notes.append(f"{called} {folder} has no {file.name} of {spec.title}")
            return None
    try:
        contents = {role: read_checked(path, spec.files[role]) for role, path in paths.items()}
    except DataError as error:
        notes.append(f"{called}: {error}")
        return None
    return Found(contents, next(iter(paths.values())).parent, called)


def _fetch(spec: DataSet, cache: Path, remote: list[str], since: float, notes: list[str]) -> Found:
    with lock.only_one(cache, spec.title):
        good = _good_in_cache(spec, cache)
        missing = [role for role in spec.files if role not in good]
        if not missing:  # another process fetched it while this one waited
            return Found(good, cache, "the cache")
        failure = lock.recent_failure(cache, remote, since)
        if failure:
            raise DataError("\n".join([*notes, failure]))
        reasons: list[str] = []
        origin = ""
        for name in remote:
            title = SOURCES[name][0]
            reason = _from_source(spec, name, missing, cache, good)
            missing = [role for role in spec.files if role not in good]
            if not missing:
                origin = title
                break
            for line in (reason or "has not all the files").splitlines():
                reasons.append(f"{title}: {line}")
                say(reasons[-1])
        if missing:
            message = "\n".join(reasons)
            lock.note_failure(cache, remote, message)
            raise DataError("\n".join([*notes, message]))
        lock.forget_failure(cache)
        return Found(good, cache, origin)


def _good_in_cache(spec: DataSet, cache: Path) -> dict[str, Buffer]:
    good: dict[str, Buffer] = {}
    for role, path in find_set(cache, spec).items():
        try:
            good[role] = read_checked(path, spec.files[role])
        except DataError as error:
            say(f"{error}; fetching it again")
    return good


def _from_source(
    spec: DataSet, name: str, missing: list[str], cache: Path, good: dict[str, Buffer]
) -> str | None:
    """Move what the source has into the cache and into `good`; the reason if it fails."""
    # The work folder lies in the cache, so the last step is a rename on one file system.
    with tempfile.TemporaryDirectory(
        dir=cache, prefix=lock.PARTIAL, ignore_cleanup_errors=True
    ) as work:
        try:
            for role, path in SOURCES[name][1](spec, missing, Path(work)):
                file = spec.files[role]
                write_whole(cache / file.name, read_checked(path, file))
                good[role] = read_checked(cache / file.name, file)
        except SourceError as error:
            return str(error)
        except DataError as error:
            return str(error).replace(f"{work}/", "")
    return None
