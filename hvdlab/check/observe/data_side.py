"""Serves the check's slice of MNIST where scripts from outside of the course look for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from .recorder import Recorder, Samples


class Slice:
    """The arrays of a data set, and the record of who asked for them."""

    def __init__(self, record: Recorder, samples: Samples, folder: str):
        self._record, self._samples, self._folder = record, samples, folder

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays by role; from now on the images are known."""
        arrays = dict(np.load(f"{self._folder}/{name}.npz"))
        self._samples.learn(*arrays.values())
        self._record("data", name=name, train=len(arrays["train_images"]))
        return arrays


def serve_keras(data: Slice, *packages: str) -> None:
    """mnist and fashion_mnist of these packages' `datasets`, without a download."""

    def loader(name: str) -> Any:
        def load_data(*_: Any, **__: Any) -> Any:
            found = data.arrays(name)
            return (
                (found["train_images"], found["train_labels"]),
                (found["test_images"], found["test_labels"]),
            )

        return load_data

    for package in packages:
        sets = importlib.import_module(f"{package}.datasets")
        sets.mnist.load_data = loader("mnist")
        sets.fashion_mnist.load_data = loader("fashion-mnist")


def serve_torchvision(data: Slice, folder: Path) -> None:
    """torchvision's MNIST and the few names that go with it, where it is not installed and a
    script in this folder wants it: Lightning makes more use of it if it finds it."""
    texts = (path.read_text(errors="replace") for path in folder.rglob("*.py"))
    if importlib.util.find_spec("torchvision") or not any("torchvision" in text for text in texts):
        return
    vision, datasets, transforms = (
        types.ModuleType(name)
        for name in ("torchvision", "torchvision.datasets", "torchvision.transforms")
    )
    vision.datasets, vision.transforms = datasets, transforms
    sys.modules.update({each.__name__: each for each in (vision, datasets, transforms)})

    def to_tensor(image: Any) -> Any:
        import torch

        return torch.from_numpy(np.asarray(image, np.float32)[None] / 255)

    class Compose:
        def __init__(self, steps: list[Any]):
            self.steps = steps

        def __call__(self, image: Any) -> Any:
            for step in self.steps:
                image = step(image)
            return image

    class Normalize:
        def __init__(self, mean: Any, std: Any):
            self.mean, self.std = mean[0], std[0]

        def __call__(self, image: Any) -> Any:
            return (image - self.mean) / self.std

    def mnist(name: str) -> type:
        class Images:
            def __init__(self, root: Any = "", train: bool = True, transform: Any = None, **_: Any):
                found, part = data.arrays(name), "train" if train else "test"
                self.images, self.targets = found[f"{part}_images"], found[f"{part}_labels"]
                self.transform = transform or (lambda image: image)

            def __len__(self) -> int:
                return len(self.images)

            def __getitem__(self, index: int) -> tuple[Any, int]:
                return self.transform(self.images[index]), int(self.targets[index])

        return Images

    transforms.Compose, transforms.Normalize, transforms.ToTensor = (
        Compose,
        Normalize,
        (lambda: to_tensor),
    )
    datasets.MNIST, datasets.FashionMNIST = mnist("mnist"), mnist("fashion-mnist")
