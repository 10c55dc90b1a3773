"""Read, check and write idx files. A file counts only when its SHA-256 is right."""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np

from .catalog import SETS, DataError, DataFile, DataSet

Buffer = bytes | bytearray | mmap.mmap


def find_file(folder: Path, file: DataFile) -> Path | None:
    """The file in `folder`, as it is or packed with gzip; None if there is neither.

    The spelling with a dot (train-images.idx3-ubyte) is common too.
    """
    dotted = file.name.replace("-idx", ".idx")
    for name in (file.name, f"{file.name}.gz", dotted, f"{dotted}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def find_set(folder: Path, spec: DataSet) -> dict[str, Path]:
    """Paths of the set's files (role to path) in `folder` or in a usual folder below it.

    Nothing is checked yet. Where no place has all four files, the fullest one is
    returned, so it may be incomplete or empty.
    """
    best: dict[str, Path] = {}
    for place in (folder, *(folder / below for below in spec.folders)):
        found = {role: find_file(place, file) for role, file in spec.files.items()}
        here = {role: path for role, path in found.items() if path}
        if len(here) > len(best):
            best = here
    return best


def read_checked(path: Path, file: DataFile) -> Buffer:
    """The file's uncompressed content, checked; a raw file is mapped, not read.

    A mapping is shared between the processes of a host, so eight ranks hold one copy.

    Raises:
        DataError: the file can't be read, is truncated or was altered. Names the file.
    """
    try:
        content = _unpack(path, file.size) if path.suffix == ".gz" else _map(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or damaged ({error})") from None
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror or error})") from None
    check(content, file, path)
    return content


def check(content: Buffer, file: DataFile, where: object) -> None:
    """Raise DataError, naming `where`, unless `content` is the file."""
    size = len(memoryview(content))
    if size < file.size:
        raise DataError(f"{where} is truncated: {size:,} of {file.size:,} bytes")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        for other in SETS.values():  # whose files have the same names
            if any(digest == one.sha256 for one in other.files.values()):
                raise DataError(f"{where} belongs to {other.title}; each set needs its own folder")
        raise DataError(f"{where} was altered: its SHA-256 is not that of {file.name}")


def _map(path: Path) -> Buffer:
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            return b""  # an empty file can't be mapped
        # Copy on write: torch wants writable memory, and the file must stay as it is.
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)


def _unpack(path: Path, size: int) -> Buffer:
    with gzip.open(path, "rb") as stream:
        content = bytearray(stream.read(size + 1))  # never more: archives can lie
    return content


def to_array(content: Buffer) -> np.ndarray:
    """The idx content as a numpy array over the same memory, without a copy."""
    dimensions = memoryview(content)[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def pack(content: Buffer) -> bytes:
    """The content packed with gzip; the same bytes every time."""
    return gzip.compress(bytes(content), compresslevel=6, mtime=0)


def write_whole(path: Path, content: Buffer) -> None:
    """Write a file so that others see all of it or none of it.

    Raises:
        DataError: it can't be written (no room, no permission).
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".partial-{path.name}-")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{path} can't be written ({error.strerror or error})") from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
