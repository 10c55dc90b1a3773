"""A sampler that goes on in the middle of an epoch."""

import itertools
import math
import random
from collections.abc import Iterator, Sized

import torch

from hvdlite.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Shares a data set out to the ranks, and after a new start what is left of the epoch.

    Give it to the TorchState, call `record_batch` after each batch, and `set_epoch` at the end of
    an epoch. As in torch's DistributedSampler each rank gets the same number of samples, for which
    the first ones come again if need be. `seed` must be the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_num = 0  # samples of this epoch, on all ranks
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, for which the samples are shuffled anew."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """A batch of this size is done, on every rank."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how far it has come."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Share out again what is left."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(padded, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
