"""Buckets of gradients on a GPU, which NCCL reduces, and all buckets of a model.

Most models have one bucket, packed and reduced in `step()`: that takes the GPU less time than it
takes Python to look after every gradient on its own. Where gradients are few and large, as in
VGG, there are several buckets, in the order in which the backward pass comes to them; each is
reduced as soon as it is full, on a stream of its own, while the backward pass goes on.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from hvdlite import buckets, gpu
from hvdlite.request import Request
from hvdlite.shared_memory import Segment
from hvdlite.torch.buckets import Bucket
from hvdlite.torch.tensors import as_array, current_stream

LARGE_BYTES = 8 << 20  # mean size of a gradient from which the overlap is worth its price
BUCKET_BYTES = 100 << 20


@functools.cache
def _communication_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class GPUBucket(Bucket):
    """A bucket in the memory of a GPU. With `early` it is reduced as soon as it is full."""

    device = gpu.NAME

    def __init__(self, params: Sequence[torch.Tensor], dtype: torch.dtype, early: bool):
        super().__init__(params, dtype)
        self._early = early
        self._device = params[0].device

    def allocation(self, name: str, kind: str = "barrier") -> Request:
        return super().allocation(name, kind)  # agree on the shapes; the memory is one's own

    def place(self, segment: Segment | None) -> None:
        buffer = torch.zeros(self.count, dtype=self.torch_dtype, device=self._device)
        self.flat = as_array(buffer)
        self._lay_out(buffer)
        self._there = buffer[self._extra_start :]
        self._ones = torch.ones_like(self._there)

    def put_early(self, param: torch.Tensor) -> bool:
        return self._early

    def fill(self) -> None:
        grads = [param.grad for param in self.params]
        there = [grad is not None for grad in grads]
        self._lacks = not all(there)
        pairs = [(self._there, self._ones.new_tensor(there) if self._lacks else self._ones)]
        for view, grad in zip(self.views, grads, strict=True):
            if grad is None:
                view.zero_()
            elif grad is not view:
                pairs.append((view, grad.to_dense() if grad.is_sparse else grad))
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))

    def request(self, *args: Any) -> Request:
        request = super().request(*args)
        if self._early:
            stream = _communication_stream(self._device)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            request.stream = gpu.stream(stream.cuda_stream)
        else:
            request.stream = current_stream(self._device).stream
        return request

    def settle(self) -> None:
        if self._early:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_stream(_communication_stream(self._device))

    def take(self) -> None:
        there = self._there.tolist() if self._lacks else None  # waits for the GPU
        for i, (param, view) in enumerate(zip(self.params, self.views, strict=True)):
            if param.grad is not None or there[i]:
                # `to` gives the same view where nothing was compressed, and takes its time.
                param.grad = view if view.dtype == param.dtype else view.to(param.dtype)


def _gpu_buckets(params: Sequence[torch.Tensor], dtype: torch.dtype) -> list[Bucket]:
    sizes = [param.numel() * dtype.itemsize for param in params]
    if sum(sizes) < LARGE_BYTES * len(sizes):
        return [GPUBucket(params, dtype, early=False)]
    members: list[list[torch.Tensor]] = []
    filled = BUCKET_BYTES
    for param, size in zip(reversed(params), reversed(sizes), strict=True):
        if filled >= BUCKET_BYTES:
            members.append([])
            filled = 0
        members[-1].append(param)
        filled += size
    return [GPUBucket(each, dtype, early=True) for each in members]


def make_buckets(
    params: Sequence[torch.Tensor], wire_dtype: torch.dtype | None, name: str, group: int
) -> list[Bucket]:
    """Sort the parameters into buckets by dtype and device, and place these; collective.

    With `wire_dtype`, floating-point gradients are sent as that.
    """
    alike: dict[tuple, list[torch.Tensor]] = {}
    for param in params:
        dtype = wire_dtype if wire_dtype and param.dtype.is_floating_point else param.dtype
        alike.setdefault((dtype, param.device), []).append(param)
    made: list[Bucket] = []
    for (dtype, device), members in alike.items():
        on_gpu = current_stream(device).name == gpu.NAME
        made += _gpu_buckets(members, dtype) if on_gpu else [Bucket(members, dtype)]
    buckets.place(made, name, group)
    return made
