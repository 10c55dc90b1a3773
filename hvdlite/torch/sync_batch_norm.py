"""Batch normalization over the batches of all ranks."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvdlite.basics import size
from hvdlite.request import SUM
from hvdlite.torch.allreduce_ops import grouped_allreduce


def _sum_over_ranks(parts: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    return grouped_allreduce(parts, name=f"sync_batch_norm.{name}", op=SUM)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization (1d to 3d) with mean and variance over the samples of all ranks.

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
            state = (self.running_mean, self.running_var, self.weight, self.bias)
            options = (use_batch, self._factor(), self.eps)
            return torch.nn.functional.batch_norm(input, *state, *options)
        output, mean, variance, count = self._normalized(input)
        if self.track_running_stats:
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

    def _normalized(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(input - mean) / sqrt(variance + eps) * weight + bias, and what it was made of.

        Ioffe and Szegedy, "Batch Normalization", 2015, section 3, over the samples of all ranks.
        The gradient flows through both sums, so it takes two collectives as well.
        """
        wide = input.double() if input.dtype == torch.float64 else input.float()
        dims = [0, *range(2, input.dim())]
        count = wide.new_tensor([wide.numel() / max(wide.shape[1], 1)])
        total, count = _sum_over_ranks([wide.sum(dims), count], "mean")
        mean = total / count
        centred = wide - _along(mean, wide)
        (squares,) = _sum_over_ranks([centred.square().sum(dims)], "variance")
        variance = squares / count
        output = centred * _along(torch.rsqrt(variance + self.eps), wide)
        if self.affine:
            output = output * _along(self.weight, wide) + _along(self.bias, wide)
        return output.to(input.dtype), mean.detach(), variance.detach(), count.detach()


def _along(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of [C] in the shape that multiplies [N, C, ...] channel by channel."""
    return channels.view(1, -1, *[1] * (like.dim() - 2))
