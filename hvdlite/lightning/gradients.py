"""The gradients of a Trainer's optimizers, which stay the plain ones that the program has made.

A Trainer clips and unscales between the backward pass and the step, may run several backward
passes a step, and has hooks that look at gradients: so they are reduced right after the backward
pass, by what DistributedOptimizer uses, and not in `step()`.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hvdlite.gradients.options import GradientOptions
from hvdlite.torch.gradients import GradientSync
from hvdlite.torch.mixin import DistributedMixin


class Gradients:
    """Reduces them, all optimizers' at once, in the same order on all ranks."""

    def __init__(self, compression: Any):
        self._options = GradientOptions(compression=compression)
        self._syncs: dict[torch.optim.Optimizer, GradientSync] = {}
        self._fresh: set[torch.optim.Optimizer] = set()  # reduced, and not yet used by a step
        self._held = False
        self.names: dict[torch.Tensor, str] = {}  # for messages and the timeline

    def forget(self) -> None:
        """Forget all optimizers; others come."""
        self._syncs.clear()
        self._fresh.clear()
        self.names.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this, backward passes add up on each rank."""
        before, self._held = self._held, True
        self._expect(sys.maxsize)  # never complete, so that nothing is begun
        try:
            yield
        finally:
            self._held = before
            if not before:
                self._expect(1)

    def _expect(self, passes: int) -> None:
        for sync in self._syncs.values():
            sync.forget()
            sync.backward_passes_per_step = passes

    def after_backward(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Reduce the gradients of all optimizers, unless they are `held`."""
        if not self._held:
            self._reduce(optimizers)

    def before_step(
        self, optimizer: torch.optim.Optimizer, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Reduce what no `after_backward` has: a step is never taken with one rank's gradients."""
        sync = self._syncs.get(optimizer)
        if optimizer not in self._fresh or (sync is not None and sync.counted()):
            self._reduce(optimizers)
        self._fresh.discard(optimizer)

    def _reduce(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if not self._options.active:
            return
        seen: set[int] = set()  # a parameter of two optimizers is reduced once
        for optimizer in optimizers:
            every = [param for group in optimizer.param_groups for param in group["params"]]
            trained = [param for param in every if param.requires_grad]
            params = [param for param in trained if id(param) not in seen]
            seen.update(map(id, params))
            if params:
                self._sync_of(optimizer).synchronize([{"params": params}])
            if trained:  # not where a GAN's other half is switched off
                self._fresh.add(optimizer)

    def _sync_of(self, optimizer: torch.optim.Optimizer) -> GradientSync:
        if isinstance(optimizer, DistributedMixin):
            raise ValueError(
                "configure_optimizers has returned a hvd.DistributedOptimizer, but with "
                'strategy="horovod" the Trainer reduces the gradients: return the plain optimizer'
            )
        if optimizer not in self._syncs:
            self._syncs[optimizer] = GradientSync([], self.names, self._options)
        return self._syncs[optimizer]
