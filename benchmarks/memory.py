"""Memory that a rank holds for training, per parameter, with hvdlite and with DDP on gloo.

    horovodrun -np 2 python benchmarks/memory.py

A model of one large layer, SGD without momentum: parameters and gradients are 8 bytes a parameter.
What a rank holds beyond that is the optimizer's, or DDP's, buffer. The proportional set size (PSS)
counts memory that ranks share once for all of them. MiB, and bytes a parameter, on rank 0.
"""

import gc

import psutil
import torch
import torch.distributed as dist
from common import COMM, start_torch, table

import hvdlite.torch as hvd

WIDTH = 4096  # 16.8 million parameters, 64 MiB


def held() -> int:
    """Bytes of this process, shared ones divided by the number of processes that share them."""
    gc.collect()
    return psutil.Process().memory_full_info().pss


def trained(kind: str) -> tuple[int, int]:
    """Bytes held after three steps, and number of parameters; everything is freed afterwards."""
    before = held()
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if kind == "hvdlite":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    if kind.startswith("DDP"):
        views = kind == "DDP, views"
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=views)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()
    COMM.Barrier()
    return held() - before, WIDTH * WIDTH


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    start_torch("gloo")
    columns = {"variant": "{}", "held": "{:.0f} MiB", "bytes / parameter": "{:.1f}"}
    results = table("Memory of a rank after three steps", columns, "memory (MiB)")
    for kind in ("alone", "hvdlite", "DDP", "DDP, views"):
        nbytes, parameters = trained(kind)
        results.row(kind, nbytes / 2**20, nbytes / parameters)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
