"""Train an image classifier on Fashion-MNIST with PyTorch Lightning, in one process.

    python scripts/fashion_mnist_lightning.py --epochs 3

scripts/solutions/fashion_mnist_lightning.py is the same program converted to many processes.
"""

import argparse
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from hvdlab import data
from hvdlab.epoch_log import EpochLog
from hvdlab.models import MODELS, create_model
from hvdlab.torch_data import ImageDataset


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Fashion-MNIST in PyTorch Lightning",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=5, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="images a step, for each process")
    add("--val-batch-size", type=int, default=500, help="images a step in validation")
    add("--base-lr", type=float, default=0.02, help="learning rate of one process")
    add("--momentum", type=float, default=0.9, help="momentum of SGD")
    add("--wd", type=float, default=0.000005, help="weight decay")
    add("--warmup-epochs", type=float, default=1, help="epochs in which several processes warm up")
    add("--target-accuracy", type=float, default=1.0, help="test accuracy at which to stop")
    add("--patience", type=int, default=2, help="epochs that meet the target before stopping")
    add("--model", choices=MODELS, default="cnn", help="network to train")
    add("--log-dir", type=Path, help="folder for epochs.jsonl and the checkpoint")
    add("--resume", action="store_true", help="go on from the checkpoint in --log-dir")
    add("--data-dir", help="folder to look for the data in first")
    add("--limit", type=int, help="use only so many images, for a quick try")
    add("--seed", type=int, default=42, help="seed of weights and shuffling")
    add("--threads", type=int, help="CPU threads; PyTorch's choice where not given")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


class Classifier(pl.LightningModule):
    """The network, its loss, its accuracy and its optimizer."""

    def __init__(self, args):
        super().__init__()
        self.args, self.model = args, create_model(args.model)
        self.rate = args.base_lr

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        right = self.model(images).argmax(dim=1) == labels
        self.log("accuracy", right.float().mean())

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.SGD(
            self.parameters(),
            lr=self.rate,
            momentum=self.args.momentum,
            weight_decay=self.args.wd,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def factor(self, step):
        """Of the rate: ten times lower after 60 % and again after 85 % of the training."""
        progress = self.args.epochs * step / self.trainer.estimated_stepping_batches
        factor = 1.0
        for share in (0.6, 0.85):
            if progress >= share * self.args.epochs:
                factor *= 0.1
        return factor


class Report(Callback):
    """Reports every epoch, and stops the training when it meets its target."""

    def __init__(self, args, facts: dict):
        self.args, self.facts, self.met_target = args, facts, 0

    def on_train_start(self, trainer, pl_module):
        self.log = EpochLog(self.args.log_dir, done=trainer.current_epoch, **self.facts)

    def on_train_epoch_start(self, trainer, pl_module):
        self.start = time.perf_counter()

    def on_validation_start(self, trainer, pl_module):
        self.seconds = time.perf_counter() - self.start

    def on_train_epoch_end(self, trainer, pl_module):
        loss, accuracy = (trainer.callback_metrics[name].item() for name in ("loss", "accuracy"))
        self.log.add(trainer.current_epoch + 1, self.seconds, loss, accuracy)
        self.met_target = self.met_target + 1 if accuracy >= self.args.target_accuracy else 0
        trainer.should_stop = self.met_target >= self.args.patience


def main():
    args = parse_arguments()
    pl.seed_everything(args.seed, verbose=False)

    # Device: a GPU if there is one; otherwise the CPU.
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    if args.threads:
        torch.set_num_threads(args.threads)

    # Data: every epoch sees all training images, in a new order.
    fashion = data.load("fashion-mnist", data_dir=args.data_dir)
    train_set = ImageDataset(fashion.train_images[: args.limit], fashion.train_labels[: args.limit])
    test_set = ImageDataset(fashion.test_images[: args.limit], fashion.test_labels[: args.limit])
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=True, collate_fn=ImageDataset.collate
    )
    test_loader = DataLoader(test_set, args.val_batch_size, collate_fn=ImageDataset.collate)

    # Model and Trainer.
    module = Classifier(args)
    facts = {
        "epochs": args.epochs,
        "images": len(train_set),
        "processes": 1,
        "batch_size": args.batch_size,
        "learning_rate": module.rate,
        "threads": torch.get_num_threads(),
        "device": "cuda" if use_cuda else "cpu",
        "is_sample": fashion.is_sample,
    }
    callbacks: list[Callback] = [Report(args, facts)]
    if args.log_dir:
        callbacks.append(
            ModelCheckpoint(args.log_dir, filename="checkpoint", enable_version_counter=False)
        )
    trainer = pl.Trainer(
        accelerator="gpu" if use_cuda else "cpu",
        devices=1,
        max_epochs=args.epochs,
        callbacks=callbacks,
        enable_checkpointing=bool(args.log_dir),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )

    # Training, from the checkpoint on if there is one.
    checkpoint = args.log_dir / "checkpoint.ckpt" if args.log_dir else None
    resume = args.resume and checkpoint and checkpoint.exists()
    trainer.fit(module, train_loader, test_loader, ckpt_path=checkpoint if resume else None)
    return module.model


if __name__ == "__main__":
    main()
