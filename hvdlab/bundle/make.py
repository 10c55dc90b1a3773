"""`hvdlab bundle`: this environment, the data and the course in one file that Python runs."""

from __future__ import annotations

import contextlib
import gzip
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..data.catalog import SETS
from ..data.fetch import find_or_fetch
from ..handout import is_checkout, source
from ..progress import bar
from .unpack import DATA, ENVIRONMENT, FACTS, WHEELS

# Of hvdlite's extras, those that a class works with.
EXTRAS = ("labs", "mpi", "mpich", "impi", "torch", "tensorflow", "tensorflow-cpu", "lightning")
LARGEST = 4 << 30  # bytes: what a file of this kind can hold for all Pythons


class BundleError(Exception):
    """This environment can't be packed, and why."""


def make(target: Path, extras: tuple[str, ...] = EXTRAS) -> int:
    """Write the bundle; what was there stays until the new one is whole. Returns its bytes.

    Packed are the packages that are installed here for these extras of hvdlite, and all that they
    need, in the versions that they have here.

    Raises:
        BundleError: this is no virtual environment, or there is more than such a file can hold.
        DataError: a data set is not here and can't be fetched.
        OSError: the file can't be written.
    """
    if sys.prefix == sys.base_prefix:
        raise BundleError("hvdlab runs in no virtual environment; install it in one, and try again")
    whole = [(path, path.stat().st_size) for path in sorted(_files(extras))]
    data = {name: find_or_fetch(spec) for name, spec in SETS.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=target.parent)))
        wheels = list(_wheel(folder)) if is_checkout() else []
        part = folder / "part"
        bundle = stack.enter_context(zipfile.ZipFile(part, "w", zipfile.ZIP_STORED))
        bundle.write(Path(__file__).with_name("unpack.py"), "__main__.py")
        facts = {
            "python": list(sys.version_info[:2]),
            "machine": platform.machine(),
            "libc": platform.libc_ver(),
            "bytes": sum(size for _, size in whole),
            "version": importlib.metadata.version("hvdlite"),
        }
        bundle.writestr(FACTS, json.dumps(facts))
        with bundle.open(ENVIRONMENT, "w", force_zip64=True) as out:
            _pack(whole, out)
        for wheel in wheels:
            bundle.write(wheel, f"{WHEELS}/{wheel.name}")
        for name, found in data.items():
            for role, content in found.contents.items():
                path = f"{DATA}/{name}/{SETS[name].files[role].name}"
                bundle.writestr(path, bytes(content), zipfile.ZIP_DEFLATED)
        bundle.close()
        size = part.stat().st_size
        if size >= LARGEST:
            raise BundleError(
                f"the bundle would have {size / 1e9:.1f} GB, and such a file can have "
                f"{LARGEST / 1e9:.1f}: leave something out, such as --without tensorflow"
            )
        part.chmod(0o644)
        part.replace(target)
    return size


def _files(extras: tuple[str, ...]) -> Iterator[Path]:
    """What the packages have put into this environment, but for what is made anew there."""
    for package in _packages(extras).values():
        for file in package.files or ():
            path = Path(os.path.abspath(file.locate()))
            inside = path.is_relative_to(sys.prefix) and "__pycache__" not in path.parts
            if not inside or not path.is_file():
                continue
            if path.parent.name != "bin" or not _starts_with(path, b"#!" + sys.prefix.encode()):
                yield path  # what begins so is made from the packages' entry points


def _starts_with(path: Path, words: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(words)) == words


def _packages(extras: tuple[str, ...]) -> dict[str, importlib.metadata.Distribution]:
    """The installed packages that hvdlite needs with these extras, and it itself, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted, seen = [("hvdlite", extras), ("pip", ())], set()
    while wanted:
        name, of = each = wanted.pop()
        if each in seen:
            continue
        seen.add(each)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        found[canonicalize_name(name)] = package
        for line in package.requires or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*of, "")):
                wanted.append((needed.name, tuple(needed.extras)))
    if is_checkout():  # an editable one leads back to the checkout; its wheel comes along
        del found["hvdlite"]
    return found


def _pack(whole: list[tuple[Path, int]], out: IO[bytes]) -> None:
    """Write the files into an archive, with their paths in the environment."""
    shown = bar(sum(size for _, size in whole), "Packing the environment")
    fast = gzip.GzipFile(fileobj=out, mode="wb", compresslevel=3)
    with shown, fast, tarfile.open(fileobj=fast, mode="w|") as archive:
        for path, size in whole:
            archive.add(path, path.relative_to(sys.prefix), recursive=False)
            shown.update(size)


def _wheel(folder: Path) -> Iterator[Path]:
    """The wheel of the checkout that hvdlab runs from, made in `folder`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=source(), capture_output=True, text=True)
    if built.returncode:
        raise BundleError(f"hvdlite's wheel could not be built: {built.stderr.strip()[-500:]}")
    yield from folder.glob("*.whl")
