"""A line on each epoch: printed, and kept where `hvdlab compare` reads it.

    log = EpochLog(args.log_dir, epochs=3, images=60_000, batch_size=64, learning_rate=0.1)
    log.add(1, seconds=12.5, loss=0.61, accuracy=0.82)

In a program of several processes rank 0 alone gives it a folder and adds to it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path


def tensorboard_folder(text: str) -> Path:
    """The value of an option `--tensorboard FOLDER`.

    Raises argparse.ArgumentTypeError where TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise argparse.ArgumentTypeError("TensorBoard is not installed: pip install tensorboard")
    return Path(text)


def keep_epochs(folder: Path, count: int) -> None:
    """Cut the epochs.jsonl of a folder behind its first `count` lines; 0 removes it.

    An epoch is logged before its checkpoint is saved. So a program that is killed in between loses
    no line, but whoever goes on from the last checkpoint trains that epoch, and logs it, again.
    """
    path, new = folder / "epochs.jsonl", folder / "epochs.new"
    if not count:
        path.unlink(missing_ok=True)
    elif path.exists():
        new.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
        os.replace(new, path)


class EpochLog:
    """Prints every epoch; with a folder also appends it as JSON to epochs.jsonl there.

    Args:
        folder: made if need be; None for no file.
        done: epochs that an earlier run has finished; their lines are kept.
        epochs: how many the training may take.
        images: training images in an epoch, of all processes together.
        batch_size: images a step, of one process.
        learning_rate: of all processes together, before its decay.
        processes, threads: how many, and CPU threads in each of them.
        device: "cpu", or what the model runs on.
        is_sample: whether the data is only a sample.

    Raises:
        OSError: the folder can't be made or written.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        epochs: int,
        images: int,
        batch_size: int,
        learning_rate: float,
        processes: int = 1,
        threads: int = 1,
        device: str = "cpu",
        is_sample: bool = False,
        done: int = 0,
    ) -> None:
        self._path = folder / "epochs.jsonl" if folder else None
        self._epochs, self._images = epochs, images
        self._facts = {
            "processes": processes,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "threads": threads,
            "device": device,
            "is_sample": is_sample,
        }
        self._is_first = True
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            keep_epochs(folder, done)

    def add(self, epoch: int, seconds: float, loss: float, accuracy: float) -> None:
        """Report an epoch.

        Args:
            epoch: its number, from 1 on.
            seconds: time of its training, without validation.
            loss: mean loss on the training images.
            accuracy: share of the test images that the model names correctly, 0 to 1.
        """
        record = {
            "epoch": epoch,
            "epochs": self._epochs,
            "seconds": seconds,
            "images": self._images,
            "images_per_second": self._images / seconds,
            "loss": float(loss),
            "accuracy": float(accuracy),
            "is_warmup": self._is_first,
            **self._facts,
        }
        self._is_first = False
        print(
            "epoch {epoch}/{epochs}  loss {loss:.4f}  test accuracy {accuracy:.4f}  "
            "{seconds:.1f} s  {images_per_second:,.0f} images/s".format(**record),
            flush=True,
        )
        if self._path:
            with self._path.open("a") as log:
                log.write(json.dumps(record) + "\n")
