"""The record of one rank: a line of JSON for each thing that happened."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np


class Recorder:
    """Appends events to a file; each line is written at once and whole."""

    def __init__(self, path: Path, rank: int, script: Path, gpus: int):
        self.rank = rank
        self.gpus = gpus  # pretended
        self.phase = 0  # the number of the script's run, from 1
        self.stepped = 0  # the last of them in which an optimizer of a framework took a step
        self.visible: dict[int, str] = {}  # by that number; see gpus_are_seen
        self.script = str(script)
        self.folder = str(script.parent)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._quiet = threading.local()

    def __call__(self, event: str, **facts: Any) -> None:
        if event == "step":
            self.stepped = self.phase
        if not self.is_quiet():
            line = json.dumps({"event": event, **facts}, default=str)
            os.write(self._fd, line.encode() + b"\n")

    def is_quiet(self) -> bool:
        """Whether the observer itself is at work, whose doings don't count."""
        return getattr(self._quiet, "on", False)

    def __enter__(self) -> None:
        self._quiet.on = True

    def __exit__(self, *_: object) -> None:
        self._quiet.on = False

    def gpus_are_seen(self) -> str:
        """CUDA_VISIBLE_DEVICES as it is when a framework first looks: later changes don't count."""
        return self.visible.setdefault(self.phase, os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    def alive(self) -> None:
        """Let it be seen that something happens of which nothing is written down."""
        with contextlib.suppress(OSError):  # a child that has closed its files
            os.utime(self._fd)

    def where(self, frame: FrameType | None = None) -> str:
        """The line of the student's files that is being run, such as "my.py, line 12"."""
        frame = frame or sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self.folder):
                return f"{Path(file).name}, line {frame.f_lineno}"
            frame = frame.f_back
        return ""

    def answer(self, asked: Path) -> None:
        """Wait until there is a file of that name; then tell where the main thread is."""
        while not asked.exists():
            time.sleep(0.5)
        seconds = round(time.time() - os.fstat(self._fd).st_mtime)
        # Of all threads, since there is no other way; the run is over after that.
        frame = sys._current_frames().get(threading.main_thread().ident)
        self("here", where=self.where(frame), seconds=seconds)

    def from_script(self, depth: int = 2) -> bool:
        """Whether the caller's caller belongs to the student's folder."""
        return sys._getframe(depth).f_code.co_filename.startswith(self.folder)


def digest(arrays: Iterable[Any]) -> str:
    """The same text for the same numbers, bit by bit."""
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


_WAYS = 3
_directions: dict[int, np.ndarray] = {}


def sketch(arrays: Iterable[Any]) -> np.ndarray:
    """A few numbers for many: scalar products with random vectors, the same for each length.

    What is the sum or a multiple of arrays has the sum or the multiple of their sketches. After
    Johnson and Lindenstrauss, "Extensions of Lipschitz mappings into a Hilbert space", 1984.
    """
    found = np.zeros(_WAYS)
    for array in arrays:
        flat = np.asarray(array, np.float64).ravel()
        if flat.size not in _directions:
            _directions[flat.size] = np.random.default_rng(0).standard_normal((_WAYS, flat.size))
        found += _directions[flat.size] @ flat
    return found


class Samples:
    """Recognizes the images of a data set in what a model gets, however they were scaled."""

    def __init__(self) -> None:
        self._known: dict[str, int | str] = {}
        self._labels: dict[int | str, int] = {}

    def learn(self, train: Any, train_labels: Any, test: Any, test_labels: Any) -> None:
        """Remember the images of the training set, as 0, 1, ..., and of the test set, "t0", ..."""
        for images, labels, name in ((train, train_labels, None), (test, test_labels, "t")):
            for number, key in enumerate(_keys(np.asarray(images))):
                label = number if name is None else f"{name}{number}"
                self._known.setdefault(key, label)
                self._labels[label] = int(labels[number])

    def identify(self, batch: Any) -> list[int | str]:
        """The number of each image, or a hash where it is none of the known ones."""
        return [self._known.get(key, key) for key in _keys(np.asarray(batch))]

    def right(self, ids: list[int | str], scores: Any) -> int | None:
        """How many images got their own label; None where that can't be said."""
        scores = np.asarray(scores)
        labels = [self._labels.get(number) for number in ids]
        if scores.ndim != 2 or len(scores) != len(ids) or None in labels:
            return None
        return int((scores.argmax(axis=1) == np.asarray(labels)).sum())

    def cross_entropy(self, ids: list[int | str], scores: Any) -> float | None:
        """The mean cross entropy of logits or probabilities; None where the labels are unknown."""
        scores = np.asarray(scores, np.float64)
        labels = [self._labels.get(number) for number in ids]
        if scores.ndim != 2 or len(scores) != len(ids) or None in labels or not ids:
            return None
        if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-4):
            scores = np.log(np.maximum(scores, 1e-12))
        top = scores.max(axis=1)
        mass = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
        return float((mass - scores[np.arange(len(ids)), labels]).mean())


def _keys(batch: np.ndarray) -> list[str]:
    if not len(batch):
        return []
    rows = batch.reshape(len(batch), -1).astype(np.float32)
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    rows = np.rint((rows - low) / np.maximum(high - low, 1e-12) * 255).astype(np.uint8)
    return [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in rows]
