"""Put the files where other libraries look, so that unmodified scripts run offline."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from .catalog import DataError, DataFile, DataSet
from .fetch import chosen_sources
from .files import Buffer, pack, read_checked, write_whole
from .sources import SourceError, download

# Keras checks the hash of this one. It can't be made from MNIST's files: the zip inside
# carries the clock times of the day on which its author packed it.
KERAS_MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
KERAS_MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"


def keras_folder() -> Path:
    """Where keras.datasets looks: $KERAS_HOME/datasets, or ~/.keras/datasets."""
    home = os.environ.get("KERAS_HOME")
    return (Path(home) if home else Path.home() / ".keras") / "datasets"


def for_keras(spec: DataSet, contents: dict[str, Buffer], sources: list[str] | None) -> list[str]:
    """Put a set where keras.datasets looks; returns one line on each thing done.

    Of MNIST it takes another file, which is asked of `sources`.

    Raises:
        DataError: the folder can't be written.
    """
    if spec.name == "mnist":
        return [_keras_mnist(keras_folder() / "mnist.npz", sources)]
    folder = keras_folder() / spec.name
    return [
        _place(folder / f"{file.name}.gz", file, contents[role], packed=True)
        for role, file in spec.files.items()
    ]


def for_torchvision(spec: DataSet, contents: dict[str, Buffer], root: Path) -> list[str]:
    """Put a set where torchvision.datasets.X(root) looks; returns one line on each thing done.

    Raises:
        DataError: the folder can't be written.
    """
    folder = root / spec.title.replace("-", "") / "raw"
    return [
        _place(folder / file.name, file, contents[role], packed=False)
        for role, file in spec.files.items()
    ]


def _place(path: Path, file: DataFile, content: Buffer, packed: bool) -> str:
    if path.exists():
        try:
            read_checked(path, file)
            return f"{path} is there already"
        except DataError as error:
            write_whole(path, pack(content) if packed else content)
            return f"{error}; replaced"
    write_whole(path, pack(content) if packed else content)
    return f"{path} written"


def _keras_mnist(path: Path, sources: list[str] | None) -> str:
    if path.exists() and _sha256(path) == KERAS_MNIST_SHA256:
        return f"{path} is there already"
    with tempfile.TemporaryDirectory() as work:
        try:
            if "public" not in chosen_sources(sources):
                raise SourceError("was not asked: the source 'public' is off")
            arrived = download(KERAS_MNIST_URL, Path(work))
        except SourceError as error:
            reason = f"{KERAS_MNIST_URL} {error}"
        else:
            if _sha256(arrived) == KERAS_MNIST_SHA256:
                write_whole(path, arrived.read_bytes())
                return f"{path} written"
            reason = f"what {KERAS_MNIST_URL} sent has another SHA-256"
    return (
        f"{path} SKIPPED: keras.datasets.mnist takes only Keras's own mnist.npz, whose hash "
        f"covers the time of its packing, so it can't be made here; and {reason}. "
        'Use hvdlab.data.load("mnist") instead'
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
