"""Train an image classifier on MNIST with PyTorch, in any number of processes.

    horovodrun -np 2 python scripts/solutions/mnist_torch.py

scripts/mnist_torch.py is the same program for one process.
"""

import argparse
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

from hvdlab import data
from hvdlab.epoch_log import EpochLog
from hvdlab.torch_data import ImageDataset


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="MNIST in PyTorch",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="images a step, for each process")
    add("--val-batch-size", type=int, default=500, help="images a step in validation")
    add("--base-lr", type=float, default=0.001, help="learning rate of one process")
    add("--log-dir", type=Path, help="folder for epochs.jsonl and the model")
    add("--data-dir", help="folder to look for the data in first")
    add("--limit", type=int, help="use only so many images, for a quick try")
    add("--seed", type=int, default=42, help="seed of weights and shuffling")
    add("--threads", type=int, default=1, help="CPU threads a process")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def create_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model, optimizer, loader, device):
    """One pass over the training images; returns the mean loss."""
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return metric_average(total / len(loader), "loss")


def metric_average(value, name):
    """Step 9: the mean over the processes; each of them saw only its own images."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


@torch.no_grad()
def evaluate(model, loader, device):
    """The share of test images that the model names correctly, 0 to 1."""
    right = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
    return metric_average(right / len(loader.sampler), "accuracy")


def main():
    args = parse_arguments()
    hvd.init()  # Step 1
    torch.manual_seed(args.seed)

    # Device: step 2, a GPU for each process of this host; otherwise the CPU.
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda" if use_cuda else "cpu")
    if use_cuda:
        torch.cuda.set_device(hvd.local_rank())
    torch.set_num_threads(args.threads)  # Step 11: each process has its own

    # Data: step 6, each process sees its own part of the images.
    mnist = data.load("mnist", data_dir=args.data_dir)
    train_set = ImageDataset(mnist.train_images[: args.limit], mnist.train_labels[: args.limit])
    test_set = ImageDataset(mnist.test_images[: args.limit], mnist.test_labels[: args.limit])
    train_sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)
    test_sampler = DistributedSampler(test_set, hvd.size(), hvd.rank(), shuffle=False)
    train_loader = DataLoader(
        train_set, args.batch_size, sampler=train_sampler, collate_fn=ImageDataset.collate
    )
    test_loader = DataLoader(
        test_set, args.val_batch_size, sampler=test_sampler, collate_fn=ImageDataset.collate
    )

    # Model and optimizer.
    model = create_model().to(device)
    # Step 3: N processes average over N times as many images. (To leave it as it is, give each
    # process args.batch_size // hvd.size() images a step: then a step is that of one process.)
    rate = args.base_lr * hvd.size()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # Step 4

    # Step 5: all processes start from the weights and the optimizer state of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    # Training.
    facts = {
        "epochs": args.epochs,
        "images": len(train_set),
        "processes": hvd.size(),
        "batch_size": args.batch_size,
        "learning_rate": rate,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "is_sample": mnist.is_sample,
    }
    log_dir = args.log_dir if hvd.rank() == 0 else None  # Step 7: one process writes
    log = EpochLog(log_dir, **facts)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)  # Step 6: a new order in every epoch
        start = time.perf_counter()
        loss = train(model, optimizer, train_loader, device)
        seconds = time.perf_counter() - start
        accuracy = evaluate(model, test_loader, device)
        if hvd.rank() == 0:  # Step 7
            log.add(epoch + 1, seconds, loss, accuracy)
    if hvd.rank() == 0 and args.log_dir:  # Step 7
        torch.save(model.state_dict(), args.log_dir / "model.pt")
    return model


if __name__ == "__main__":
    main()
