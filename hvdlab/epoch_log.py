"""A line on each epoch: printed, and kept where `hvdlab compare` reads it.

    log = EpochLog(args.log_dir, epochs=3, images=60_000, batch_size=64, learning_rate=0.1)
    log.add(1, seconds=12.5, loss=0.61, accuracy=0.82)

A program of several processes makes and uses one on rank 0 only.
"""

from __future__ import annotations

import json
from pathlib import Path


class EpochLog:
    """Prints every epoch; with a folder also appends it as JSON to epochs.jsonl there.

    Args:
        folder: made if need be; None for no file.
        go_on: keep the lines that an earlier run has left in the file.
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
        go_on: bool = False,
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
            if not go_on:
                (folder / "epochs.jsonl").unlink(missing_ok=True)

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
