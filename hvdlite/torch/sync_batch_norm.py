"""Batch normalization over the batches of all ranks."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvdlite.basics import size
from hvdlite.torch import ops
from hvdlite.torch.handles import synchronize


def _sum_over_ranks(parts: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    return synchronize(ops.grouped_allreduce_async(parts, name=name, op=ops.Sum))


class SyncBatchNorm(_BatchNorm):
    """Like torch.nn.BatchNorm1d to 3d, with mean and variance over the samples of all ranks.

    The ranks' batches may differ in size. In eval mode, and with one rank, nothing is exchanged.
    Input: [N, C, ...] on any device; C is `num_features`.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes [N, C, ...], not a tensor of {input.dim()} dims")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        use_batch = self.training or not self.track_running_stats
        if not (self.training and size() > 1):
            return torch.nn.functional.batch_norm(
                input,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                use_batch,
                self._factor(),
                self.eps,
            )
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            with torch.no_grad():
                factor = self._factor()
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
        return output

    def _factor(self) -> float:
        """The weight of this batch in the running statistics; counts the batch."""
        if not (self.training and self.track_running_stats):
            return self.momentum or 0.0
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            return 1.0 / float(self.num_batches_tracked)
        return self.momentum


class _Normalize(torch.autograd.Function):
    """(input - mean) / sqrt(variance + eps) * weight + bias, over all ranks.

    Backward: Ioffe and Szegedy, "Batch Normalization", 2015, section 3, with its sums taken over
    all ranks.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight, bias, eps: float):
        wide = input.double() if input.dtype == torch.float64 else input.float()
        dims = [0, *range(2, input.dim())]
        count = torch.tensor([wide.numel() / max(wide.shape[1], 1)], dtype=wide.dtype)
        count = count.to(wide.device)
        total, count = _sum_over_ranks([wide.sum(dims), count], "sync_batch_norm.mean")
        mean = total / count
        centred = wide - _along(mean, wide)
        (squares,) = _sum_over_ranks([centred.square().sum(dims)], "sync_batch_norm.variance")
        variance = squares / count
        inverse = torch.rsqrt(variance + eps)
        normal = centred * _along(inverse, wide)
        ctx.save_for_backward(normal, inverse, weight, count)
        ctx.bias_dtype = None if bias is None else bias.dtype
        output = normal
        if weight is not None:
            output = output * _along(weight.to(wide.dtype), wide)
        if bias is not None:
            output = output + _along(bias.to(wide.dtype), wide)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: torch.Tensor):
        normal, inverse, weight, count = ctx.saved_tensors
        dims = [0, *range(2, normal.dim())]
        wide = gradient.to(normal.dtype)
        own_sum, own_product = wide.sum(dims), (wide * normal).sum(dims)
        total, product = _sum_over_ranks([own_sum, own_product], "sync_batch_norm.backward")
        inner = wide - _along(total / count, wide) - normal * _along(product / count, wide)
        scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
        # Weight and bias get this rank's own gradient: the optimizer averages it like any other.
        return (
            (inner * _along(scale, wide)).to(gradient.dtype),
            None if weight is None else own_product.to(weight.dtype),
            None if ctx.bias_dtype is None else own_sum.to(ctx.bias_dtype),
            None,
        )


def _along(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of [C] in the shape that multiplies [N, C, ...] channel by channel."""
    return channels.view(1, -1, *[1] * (like.dim() - 2))
