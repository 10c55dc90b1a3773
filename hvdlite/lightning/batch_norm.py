"""Trainer(sync_batchnorm=True): batch normalization over the batches of all ranks."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvdlite.torch.sync_batch_norm import SyncBatchNorm


class SharedBatchNorm:
    """The batch normalizations of a model while they are shared.

    They stay the same objects, with their parameters, and only change their class, which differs
    from SyncBatchNorm in nothing but what it computes.
    """

    def __init__(self) -> None:
        self._classes: dict[torch.nn.Module, type] = {}

    def share(self, model: torch.nn.Module) -> None:
        """Normalize over all ranks from now on."""
        for module in model.modules():
            if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
                self._classes[module] = type(module)
                module.__class__ = SyncBatchNorm

    def revert(self) -> None:
        """Be what they were."""
        for module, before in self._classes.items():
            module.__class__ = before
        self._classes.clear()
