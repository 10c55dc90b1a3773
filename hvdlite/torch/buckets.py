"""Buckets of torch gradients; after the reduction, a gradient is a view of its bucket."""

import math
from collections.abc import Callable, Sequence

import torch

from hvdlite.gradients.reducer import DENSE, NONE, Bucket, Gradient
from hvdlite.torch.tensors import from_array


class TensorBucket(Bucket):
    """A bucket in host memory for the gradients of some tensors, on whatever device these are."""

    puts_at_once = True  # each gradient as soon as it has been computed, while it is in the cache

    def __init__(
        self,
        gradients: Sequence[Gradient],
        members: Sequence[int],
        tensors: Sequence[torch.Tensor],
        dtype: torch.dtype,
        is_early: bool = False,
    ):
        super().__init__(gradients, members)
        self.is_early = is_early  # whether it is to be reduced as soon as it is full
        self.tensors = [tensors[i] for i in members]
        self.torch_dtype = dtype

    def use(self, flat) -> None:
        super().use(flat)
        # Each on memory of its own for torch, which then counts the changes of each one.
        self.views = [
            from_array(self.piece(k).reshape(-1)).as_strided(tensor.shape, stride_of(tensor))
            for k, tensor in enumerate(self.tensors)
        ]

    def holds(self, k: int) -> bool:
        """Whether the k-th view can be the gradient itself, and not only a copy of it."""
        return self.tensors[k].dtype == self.torch_dtype and self.tensors[k].is_cpu

    def put(self, k: int, gradient: torch.Tensor) -> torch.Tensor:
        """Copy a gradient into the bucket, if it is not there already; returns the view."""
        view = self.views[k]
        if gradient is not view:
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        return view

    def fill(self, gradients: Sequence[torch.Tensor | None], sparse_presence: int) -> None:
        """Put in all gradients of the bucket, and which of them there are."""
        for k, gradient in enumerate(gradients):
            if gradient is None:
                self.views[k].zero_()
            else:
                self.put(k, gradient)
        self.presence[:] = presence_of(gradients, sparse_presence)

    def present(self) -> list[float]:
        """The presence of each gradient, after the reduction."""
        return self.presence.tolist()

    def reduced(
        self, gradients: Sequence[torch.Tensor | None], became_sparse: Callable[[float], bool]
    ) -> list[torch.Tensor | None]:
        """The reduced gradients, where `gradients` are those of this rank.

        None where no rank had one, and sparse where it was so on any rank.
        """
        results: list[torch.Tensor | None] = []
        for k, (mine, presence) in enumerate(zip(gradients, self.present(), strict=True)):
            view, tensor = self.views[k], self.tensors[k]
            if presence == NONE and mine is None:
                results.append(None)
            elif became_sparse(presence):
                results.append(view.to(tensor.device, tensor.dtype).to_sparse(1))
            elif self.holds(k):
                results.append(view)
            elif mine is None:
                results.append(view.to(tensor.device, tensor.dtype))
            else:
                results.append(mine.copy_(view))
        return results


def presence_of(gradients: Sequence[torch.Tensor | None], sparse: int) -> list[int]:
    """What each of the gradients is on this rank."""
    return [NONE if g is None else sparse if g.is_sparse else DENSE for g in gradients]


def stride_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The stride of a gradient: its tensor's own where that has no gaps (channels_last, say)."""
    if tensor.is_contiguous() or not _is_dense(tensor):
        return torch.empty(tensor.shape, device="meta").stride()
    return tensor.stride()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order."""
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, length in order:
        if length != 1 and stride != expected:
            return False
        expected *= length
    return expected == math.prod(tensor.shape)
