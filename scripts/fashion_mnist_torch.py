"""Train an image classifier on Fashion-MNIST with PyTorch, in one process.

    python scripts/fashion_mnist_torch.py --epochs 3

scripts/solutions/fashion_mnist_torch.py is the same program converted to many processes.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

from hvdlab import data
from hvdlab.epoch_log import keep_epochs, tensorboard_folder
from hvdlab.models import MODELS, create_model
from hvdlab.torch_data import ImageDataset


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Fashion-MNIST in PyTorch",
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
    add("--tensorboard", type=tensorboard_folder, help="folder for curves in TensorBoard")
    add("--resume", action="store_true", help="go on from the checkpoint in --log-dir")
    add("--data-dir", help="folder to look for the data in first")
    add("--limit", type=int, help="use only so many images, for a quick try")
    add("--seed", type=int, default=42, help="seed of weights and shuffling")
    add("--threads", type=int, help="CPU threads; PyTorch's choice where not given")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def load_data(args):
    """The training and the test set."""
    fashion = data.load("fashion-mnist", data_dir=args.data_dir)
    train_set = ImageDataset(fashion.train_images[: args.limit], fashion.train_labels[: args.limit])
    test_set = ImageDataset(fashion.test_images[: args.limit], fashion.test_labels[: args.limit])
    return train_set, test_set, fashion.is_sample


def learning_rate(args, progress):
    """The rate at `progress` epochs: ten times lower after 60 % and again after 85 % of them."""
    rate = args.base_lr
    for share in (0.6, 0.85):
        if progress >= share * args.epochs:
            rate *= 0.1
    return rate


def train(args, model, optimizer, loader, device, epoch):
    """One pass over the training images; returns the mean loss."""
    model.train()
    total = torch.zeros((), device=device)
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, epoch + step / len(loader))
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    """The share of test images that the model names correctly, 0 to 1."""
    model.eval()
    right = torch.zeros((), device=device)
    for images, labels in loader:
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return right.item() / len(loader.sampler)


def report(args, record):
    """Print one epoch; with --log-dir also keep it, as a line of JSON."""
    print(
        "epoch {epoch}/{epochs}  loss {loss:.4f}  test accuracy {accuracy:.4f}  "
        "{seconds:.1f} s  {images_per_second:,.0f} images/s".format(**record),
        flush=True,
    )
    if args.log_dir:
        args.log_dir.mkdir(parents=True, exist_ok=True)
        with open(args.log_dir / "epochs.jsonl", "a") as log:
            log.write(json.dumps(record) + "\n")


def save_checkpoint(path, model, optimizer, epoch):
    """Write everything that a later run needs to go on after `epoch`."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)  # never a half-written checkpoint


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)

    # Device: a GPU if there is one; otherwise the CPU.
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda" if use_cuda else "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)

    # Data: every epoch sees all training images, in a new order.
    train_set, test_set, is_sample = load_data(args)
    train_sampler = RandomSampler(train_set)
    train_loader = DataLoader(
        train_set, args.batch_size, sampler=train_sampler, collate_fn=ImageDataset.collate
    )
    test_loader = DataLoader(test_set, args.val_batch_size, collate_fn=ImageDataset.collate)

    # Model and optimizer.
    model = create_model(args.model).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.base_lr,
        momentum=args.momentum,
        weight_decay=args.wd,
    )

    # Resume: find the epoch to start from.
    first_epoch = 0
    checkpoint = args.log_dir / "checkpoint.pt" if args.log_dir else None
    if args.resume and checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]
    if args.log_dir:
        keep_epochs(args.log_dir, first_epoch)

    # Training.
    writer = None
    if args.tensorboard:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(args.tensorboard)
    met_target = 0
    for epoch in range(first_epoch, args.epochs):
        start = time.perf_counter()
        loss = train(args, model, optimizer, train_loader, device, epoch)
        seconds = time.perf_counter() - start
        accuracy = evaluate(model, test_loader, device)
        record = {
            "epoch": epoch + 1,
            "epochs": args.epochs,
            "seconds": seconds,
            "images": len(train_set),
            "images_per_second": len(train_set) / seconds,
            "loss": loss,
            "accuracy": accuracy,
            "is_warmup": epoch == first_epoch,
            "processes": 1,
            "batch_size": args.batch_size,
            "learning_rate": args.base_lr,
            "threads": torch.get_num_threads(),
            "device": device.type,
            "is_sample": is_sample,
        }
        report(args, record)
        if checkpoint:
            save_checkpoint(checkpoint, model, optimizer, epoch + 1)
        if writer:
            writer.add_scalar("loss", loss, epoch + 1)
            writer.add_scalar("accuracy", accuracy, epoch + 1)
        met_target = met_target + 1 if accuracy >= args.target_accuracy else 0
        if met_target >= args.patience:
            break
    if writer:
        writer.close()
    return model


if __name__ == "__main__":
    main()
