"""torch.amp.GradScaler with distributed optimizers.

A scaler looks at the gradients before `optimizer.step()` does: it divides them by the scale, and
leaves the step out where one is not finite. It has to find the gradients of all ranks then, or one
rank would leave out a step that the others take. What is not finite on one rank is so in the
reduced gradients of all ranks, which so decide alike, and change their scales alike.
"""

import functools
from contextlib import nullcontext
from typing import Any

import torch

from hvdlite.torch.adasum import AdasumMixin
from hvdlite.torch.mixin import DistributedMixin


def reduce_before_scaling() -> None:
    """Let scalers reduce the gradients of a distributed optimizer first; once is enough."""
    scaler = torch.amp.GradScaler
    if hasattr(scaler.step, "_reduces"):
        return
    unscale, step = scaler.unscale_, scaler.step

    @functools.wraps(unscale)
    def reduce_and_unscale(self: Any, optimizer: Any) -> None:
        if _concerns(self, optimizer):
            optimizer._reduce_once()
        unscale(self, optimizer)

    @functools.wraps(step)
    def reduce_and_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        concerns = _concerns(self, optimizer)
        with optimizer._reduced_step() if concerns else nullcontext():
            return step(self, optimizer, *args, **kwargs)

    reduce_and_step._reduces = True
    scaler.unscale_, scaler.step = reduce_and_unscale, reduce_and_step


def _concerns(scaler: Any, optimizer: Any) -> bool:
    if not scaler.is_enabled() or not isinstance(optimizer, DistributedMixin):
        return False
    if isinstance(optimizer, AdasumMixin):
        raise NotImplementedError(
            "op=hvd.Adasum with a GradScaler: each rank would leave out other steps. Use bfloat16 "
            "in autocast, which needs no scaler, or op=hvd.Average"
        )
    return True
