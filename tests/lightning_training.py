"""A small LightningModule and its data, for tests that compare ranks with one process."""

import importlib
from typing import Any

from mpi import TORCH
from training import small_model

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
LIGHTNING = (*TORCH, *PACKAGES)  # for `mpi.python`
QUIET = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


def data(count: int = 20):
    """[count, 4] of random numbers, and [count, 2] to learn from them."""
    import torch

    generator = torch.Generator().manual_seed(7)
    return torch.utils.data.TensorDataset(
        torch.randn(count, 4, generator=generator), torch.randn(count, 2, generator=generator)
    )


def loader(batch: int, count: int = 20, alone: bool = False):
    """The data; `alone` in the order in which all ranks together get it.

    A Trainer on several ranks puts in a DistributedSampler, which shuffles.
    """
    import torch

    samples = data(count)
    sampler = torch.utils.data.DistributedSampler(samples, 1, 0) if alone else None
    return torch.utils.data.DataLoader(samples, batch, sampler=sampler)


def plain_module(package: str, make_optimizer: Any = None) -> Any:
    """Keeps the loss of each step, as it is on this rank."""
    import torch

    pl = importlib.import_module(package)

    class Plain(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses = small_model(), []

        def error(self, batch: list[torch.Tensor]) -> torch.Tensor:
            inputs, targets = batch
            return (self.net(inputs) - targets).square().mean()

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = self.error(batch)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            if make_optimizer is not None:
                return make_optimizer(self.parameters())
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    return Plain()


def fit(package: str, strategy: Any, module: Any, batch: int, **options: Any) -> Any:
    """Train; returns the Trainer."""
    pl = importlib.import_module(package)
    count = options.pop("count", 20)
    trainer = pl.Trainer(strategy=strategy, **{**QUIET, "max_epochs": 2, **options})
    trainer.fit(module, loader(batch, count, alone=strategy == "auto"))
    return trainer
