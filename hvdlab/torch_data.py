"""Images in memory as a PyTorch data set that hands out whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class ImageDataset(Dataset):
    """Pairs of a normalised image, float32 [1, 28, 28], and its label.

    The images stay in memory as bytes, shared by the processes of a host, and become
    floats batch by batch. A DataLoader that finds __getitems__ asks for a whole batch at
    once; give it `collate_fn=ImageDataset.collate`, since the batch is put together already.
    One image at a time would cost more than a small model's step on a GPU.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images = torch.from_numpy(images).unsqueeze(1)
        self.labels = torch.from_numpy(labels)
        # A fixed scale, so that a shard of the data needs no statistics of the rest.
        self.mean, self.scale = 72.0, 1 / 90.0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.as_tensor(indices)
        images = self.images[chosen].float().sub_(self.mean).mul_(self.scale)
        return images, self.labels[chosen].long()

    @staticmethod
    def collate(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch as it is."""
        return batch
