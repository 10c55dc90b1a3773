"""Lightning's Trainer with strategy="horovod" beside its own DDP on gloo: time and accuracy.

    horovodrun -np 2 python benchmarks/lightning_step.py [ROUNDS]

Fashion-MNIST, small CNN, batch of 64 a rank, one thread a rank, SGD with momentum. In each round
every strategy takes some steps, in turn; the rounds are short, so that what else the machine does
meets all of them. At the end each trains for an epoch of 6,000 images. "alone" is a Trainer on
each rank by itself, with that rank's images: what computing costs where nothing is reduced.
"""

import logging
import statistics
import sys
import time
import warnings

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import COMM, small_cnn, start_torch, table
from torch.utils.data import DataLoader, DistributedSampler

import hvdlite.torch as hvd
from hvdlab import data
from hvdlab.torch_data import ImageDataset

IMAGES, BATCH = 6000, 64  # of the training; a rank
STEPS, WARMUP = 16, 4  # of a round; those that don't count
NAMES = {"alone": "auto", "horovod": "horovod", "DDP": "ddp"}


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = small_cnn()

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        right = self.model(batch[0]).argmax(dim=1) == batch[1]
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.04, momentum=0.9)


class Steps(pl.Callback):
    """Seconds of each training step, of the slowest rank."""

    def on_train_start(self, trainer, module):
        self.seconds = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seconds.append(time.perf_counter() - self.start)

    def on_train_end(self, trainer, module):
        ranks = COMM.allgather(self.seconds)
        self.seconds = [max(each) for each in zip(*ranks, strict=True)][WARMUP:]


def loaders(name: str) -> tuple[DataLoader, DataLoader]:
    """Training and validation; alone, too, each rank gets its own part of the training images."""
    fashion = data.load("fashion-mnist")
    train = ImageDataset(fashion.train_images[:IMAGES], fashion.train_labels[:IMAGES])
    test = ImageDataset(fashion.test_images, fashion.test_labels)
    sampler = DistributedSampler(train, COMM.size, COMM.rank) if name == "alone" else None
    first = DataLoader(train, BATCH, sampler=sampler, collate_fn=ImageDataset.collate)
    return first, DataLoader(test, 500, collate_fn=ImageDataset.collate)


def fit(name: str, **limits) -> tuple[float, dict[str, torch.Tensor]]:
    """Seconds of a step, and the metrics at the end."""
    steps = Steps()
    trainer = pl.Trainer(
        strategy=NAMES[name],
        accelerator="cpu",
        devices=COMM.size if name == "DDP" else 1,
        max_epochs=1,
        callbacks=[steps],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **limits,
    )
    trainer.fit(Classifier(), *loaders(name))
    return statistics.median(steps.seconds), trainer.callback_metrics


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    hvd.init()
    start_torch("gloo")  # over loopback; Lightning takes what is there
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    short = {"limit_train_batches": STEPS, "limit_val_batches": 0}
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name in NAMES:
            seconds[name].append(fit(name, **short)[0])
    columns = {"strategy": "{}", "step": "{:.2f} ms", "step / alone": "{:.3f}"}
    columns["step / DDP"] = "{:.3f}"
    columns["test accuracy / 1"] = "{:.4f}"
    results = table("A step of Lightning's Trainer, small CNN", columns, "time (ms)")
    for name, each in seconds.items():
        # Of each round by itself, since the machine drifts.
        pairs = (zip(each, seconds[other], strict=True) for other in ("alone", "DDP"))
        ratios = [statistics.median(mine / theirs for mine, theirs in pair) for pair in pairs]
        accuracy = fit(name)[1]["accuracy"].item()
        results.row(name, statistics.median(each) * 1e3, *ratios, accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
