"""One training step with hvdlite beside the same step alone.

    horovodrun -np 2 python benchmarks/step.py

Small CNN, batch of 64 a rank, one thread a rank, SGD with momentum. All ranks compute in both
cases, so that they share the machine in the same way; the steps are taken in turn.
"""

import sys

import torch
import torch.nn.functional as F
from common import COMM, heading, interleaved, say, small_cnn

import hvdlite.torch as hvd


def trainer(distributed: bool, images: torch.Tensor, labels: torch.Tensor):
    torch.manual_seed(0)
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if distributed:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    heading("One training step, small CNN, batch 64 a rank")
    torch.manual_seed(COMM.rank)
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    variants = {
        "alone": trainer(False, images, labels),
        "hvdlite": trainer(True, images, labels),
    }
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    times = interleaved(variants, rounds, warmup=5)
    for name, seconds in times.items():
        say(f"{name:8} {seconds * 1e3:7.2f} ms")
    say(f"ratio    {times['hvdlite'] / times['alone']:7.3f}")


if __name__ == "__main__":
    main()
