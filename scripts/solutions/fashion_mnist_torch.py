"""Train an image classifier on Fashion-MNIST with PyTorch, in any number of processes.

    horovodrun -np 2 python scripts/solutions/fashion_mnist_torch.py --epochs 3

scripts/fashion_mnist_torch.py is the same program for one process.
"""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

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
    add("--threads", type=int, help="CPU threads a process; its share of the cores where not given")
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
    # Step 10: N processes average over N times as many images, so a step may be N times
    # as long; but not from the first step on, so it grows to that during the warm-up.
    warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0
    rate = args.base_lr * (1 + (hvd.size() - 1) * warm)
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
    return metric_average(total.item() / len(loader), "loss")


def metric_average(value, name):
    """Step 9: the mean over the processes; each of them saw only its own images."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


@torch.no_grad()
def evaluate(model, loader, device):
    """The share of test images that the model names correctly, 0 to 1."""
    model.eval()
    right = torch.zeros((), device=device)
    for images, labels in loader:
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return metric_average(right.item() / len(loader.sampler), "accuracy")


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
    hvd.init()  # Step 1
    torch.manual_seed(args.seed)

    # Device: step 2, a GPU for each process of this host; otherwise its share of the CPU.
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda" if use_cuda else "cpu")
    if use_cuda:
        torch.cuda.set_device(hvd.local_rank())
    cores = len(os.sched_getaffinity(0))
    share = min(cores, max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.set_num_threads(args.threads or share)  # Step 11

    # Data: step 6, each process sees its own part of the images.
    train_set, test_set, is_sample = load_data(args)
    train_sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)
    test_sampler = DistributedSampler(test_set, hvd.size(), hvd.rank(), shuffle=False)
    train_loader = DataLoader(
        train_set, args.batch_size, sampler=train_sampler, collate_fn=ImageDataset.collate
    )
    test_loader = DataLoader(
        test_set, args.val_batch_size, sampler=test_sampler, collate_fn=ImageDataset.collate
    )

    # Model and optimizer.
    model = create_model(args.model).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.base_lr * hvd.size(),  # Step 3
        momentum=args.momentum,
        weight_decay=args.wd,
    )
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # Step 4

    # Resume: step 8, rank 0 finds the epoch to start from and tells the others.
    first_epoch = 0
    checkpoint = args.log_dir / "checkpoint.pt" if args.log_dir else None
    if hvd.rank() == 0 and args.resume and checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]
    if hvd.rank() == 0 and args.log_dir:
        keep_epochs(args.log_dir, first_epoch)
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)

    # Step 5: all processes start from the weights and the optimizer state of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    # Training.
    writer = None
    if hvd.rank() == 0 and args.tensorboard:  # Step 7
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(args.tensorboard)
    met_target = 0
    for epoch in range(first_epoch, args.epochs):
        train_sampler.set_epoch(epoch)  # Step 6: a new order in every epoch
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
            "processes": hvd.size(),
            "batch_size": args.batch_size,
            "learning_rate": args.base_lr * hvd.size(),
            "threads": torch.get_num_threads(),
            "device": device.type,
            "is_sample": is_sample,
        }
        if hvd.rank() == 0:  # Step 7: one process prints and writes
            report(args, record)
            if checkpoint:
                save_checkpoint(checkpoint, model, optimizer, epoch + 1)
        if writer:  # Step 7
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
