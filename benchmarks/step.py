"""One training step with hvdlite beside the same step alone, and beside its peers.

    horovodrun -np 2 python benchmarks/step.py

Small CNN, batch of 64 a rank, one thread a rank, SGD with momentum. All ranks compute in all
cases, so that they share the machine in the same way; the steps are taken in turn.

- barrier: no gradient moves, the ranks only meet after the backward pass: what waiting for the
  slower one costs by itself
- MPI: each gradient through the MPI library's allreduce, in place, after the backward pass
- DDP: torch's DistributedDataParallel on gloo
- timeline: hvdlite, while rank 0 writes a timeline

A second table has the part that is the runtime's own: the time from when all ranks have come from
the backward pass until the gradients are reduced.
"""

import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import COMM, interleaved, small_cnn, start_torch, table
from mpi4py import MPI

import hvdlite.torch as hvd
from hvdlite import basics


def model_and_optimizer(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if kind in ("hvdlite", "timeline"):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model, optimizer


def allreduce_all(model: torch.nn.Module) -> None:
    for param in model.parameters():
        COMM.Allreduce(MPI.IN_PLACE, param.grad.numpy())


def trainer(kind: str, images: torch.Tensor, labels: torch.Tensor):
    model, optimizer = model_and_optimizer(kind)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if kind == "MPI":
            allreduce_all(model)
        if kind == "barrier":
            COMM.Barrier()
        optimizer.step()

    return step


def with_timeline(step, path: str):
    """The step with a timeline that is written during it alone."""
    hvd.start_timeline(path)
    engine = basics.engine()
    timeline, engine.timeline = engine.timeline, None

    def call() -> None:
        engine.timeline = timeline
        step()
        engine.timeline = None

    return call


def synchronization(images: torch.Tensor, labels: torch.Tensor, rounds: int) -> dict[str, float]:
    """Seconds from when all ranks have done their backward pass until gradients are reduced."""
    pairs = {kind: model_and_optimizer(kind) for kind in ("hvdlite", "MPI")}
    times: dict[str, list[float]] = {kind: [] for kind in pairs}
    for number in range(rounds + 5):
        for kind, (model, optimizer) in pairs.items():
            model.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            COMM.Barrier()
            start = time.perf_counter()
            if kind == "MPI":
                allreduce_all(model)
            else:
                optimizer.synchronize()
            spent = COMM.allreduce(time.perf_counter() - start, op=MPI.MAX)
            if number >= 5:
                times[kind].append(spent)
    return {kind: statistics.median(values) for kind, values in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(COMM.rank)
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    start_torch("gloo")
    kinds = ("alone", "barrier", "hvdlite", "MPI", "DDP")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    variants = {kind: trainer(kind, images, labels) for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        step = trainer("timeline", images, labels)
        variants["timeline"] = with_timeline(step, f"{folder}/timeline.json")
        times = interleaved(variants, rounds, warmup=5)
    columns = {"variant": "{}", "step": "{:.2f} ms", "step / alone": "{:.3f}"}
    columns["images/s of all ranks / 1000"] = "{:.3f}"
    results = table("One training step, small CNN, batch 64 a rank", columns, "time (ms)")
    for name, seconds in times.items():
        rate = COMM.size * len(images) / seconds
        results.row(name, seconds * 1e3, seconds / times["alone"], rate / 1e3)
    columns = {"variant": "{}", "synchronization": "{:.2f} ms"}
    columns["synchronization / step alone"] = "{:.3f}"
    results = table("The synchronization in it, once all ranks are there", columns, "time (ms)")
    for name, seconds in synchronization(images, labels, rounds).items():
        results.row(name, seconds * 1e3, seconds / times["alone"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
