"""Buckets of gradients on a GPU, which NCCL reduces, and all buckets of a list of tensors.

Most models have one bucket, packed and reduced in `step()`: that takes the GPU less time than it
takes Python to look after every gradient on its own. Where gradients are few and large, as in
VGG, there are several buckets, in the order in which the backward pass comes to them; each is
reduced as soon as it is full, on a stream of its own, while the backward pass goes on.
"""

import functools
from collections.abc import Sequence

import torch

from hvdlite.gpu import cuda
from hvdlite.gradients.reducer import DENSE, Bucket, Gradient, by_dtype
from hvdlite.memory.shared_memory import Segment
from hvdlite.request import Descriptor, Request
from hvdlite.torch.buckets import TensorBucket, presence_of, stride_of
from hvdlite.torch.tensors import as_array, current_stream

LARGE_BYTES = 8 << 20  # mean size of a gradient from which the overlap is worth its price
BUCKET_BYTES = 100 << 20


@functools.cache
def _communication_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class GPUBucket(TensorBucket):
    """A bucket in the memory of a GPU, which takes all its gradients at once."""

    puts_at_once = False

    def allocation(self, name: str) -> Request:
        return Request(Descriptor("barrier", name))  # the memory is one's own

    def use_segment(self, segment: Segment | None) -> None:
        self._device = self.tensors[0].device
        buffer = torch.zeros(self.count, dtype=self.torch_dtype, device=self._device)
        self.flat, self.presence = as_array(buffer), buffer[-len(self.tensors) :]
        # .data, since torch is to count the changes of each one.
        self.views = [
            buffer.as_strided(tensor.shape, stride_of(tensor), start).data
            for tensor, start in zip(self.tensors, self.starts, strict=True)
        ]
        self._ones = torch.ones_like(self.presence)

    def holds(self, k: int) -> bool:
        tensor = self.tensors[k]
        return tensor.dtype == self.torch_dtype and tensor.device == self._device

    def fill(self, gradients: Sequence[torch.Tensor | None], sparse_presence: int) -> None:
        mine = presence_of(gradients, sparse_presence)
        self._has_all = mine == [DENSE] * len(mine)
        presence = self._ones if self._has_all else self._ones.new_tensor(mine)
        pairs = [(self.presence, presence)]
        for view, gradient in zip(self.views, gradients, strict=True):
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                pairs.append((view, gradient.to_dense() if gradient.is_sparse else gradient))
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))

    def present(self) -> list[float]:
        # Where this rank has all, there is nothing to learn, and no need to wait for the GPU.
        return [DENSE] * len(self.tensors) if self._has_all else super().present()

    def request(self, name: str, op: int, scales: tuple[float, float], traced: bool) -> Request:
        request = super().request(name, op, scales, traced)
        _, request.stream, request.current = current_stream(self._device)
        if self.is_early:
            stream = _communication_stream(self._device)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            request.stream = cuda.stream(stream.cuda_stream)
        return request


def _gpu_buckets(gradients, members, tensors, dtype) -> list[Bucket]:
    sizes = {i: tensors[i].numel() * dtype.itemsize for i in members}
    if sum(sizes.values()) < LARGE_BYTES * len(members):
        return [GPUBucket(gradients, members, tensors, dtype)]
    parts: list[list[int]] = []
    filled = BUCKET_BYTES
    for i in reversed(members):
        if filled >= BUCKET_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(i)
        filled += sizes[i]
    return [GPUBucket(gradients, part, tensors, dtype, is_early=True) for part in parts]


def wire_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype that a tensor's gradient is sent as, if floating-point ones are as `dtype`."""
    return dtype if dtype and tensor.dtype.is_floating_point else tensor.dtype


def make_buckets(
    gradients: Sequence[Gradient],
    positions: Sequence[int],
    tensors: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> list[Bucket]:
    """Buckets for the gradients of tensors, at these positions; sent as `dtype` if it is given."""
    made: list[Bucket] = []
    for members in by_dtype(gradients, positions):
        first = tensors[members[0]]
        sent = wire_dtype(first, dtype)
        if current_stream(first.device).name == cuda.NAME:
            made += _gpu_buckets(gradients, members, tensors, sent)
        else:
            made.append(TensorBucket(gradients, members, tensors, sent))
    return made
