"""The whole gradient synchronization of DistributedOptimizer beside MPI's allreduce in place.

    horovodrun -np 2 python benchmarks/gradients.py

The cost is what zero_grad + backward + synchronize takes over zero_grad + backward alone, for a
layer with one weight matrix, one thread a rank.
"""

import torch
from common import COMM, interleaved, size_name, table
from mpi4py import MPI

import hvdlite.torch as hvd


def layer(nbytes: int) -> torch.nn.Linear:
    return torch.nn.Linear(1024, nbytes // 4096, bias=False)


def variants_for(nbytes: int) -> dict:
    data = torch.ones(1, 1024)
    plain, reduced, distributed = layer(nbytes), layer(nbytes), layer(nbytes)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(distributed.parameters(), lr=0.1),
        named_parameters=distributed.named_parameters(),
    )

    def backward(model: torch.nn.Module) -> None:
        model.zero_grad()
        model(data).sum().backward()

    def with_mpi() -> None:
        backward(reduced)
        COMM.Allreduce(MPI.IN_PLACE, reduced.weight.grad.numpy())

    def with_hvdlite() -> None:
        backward(distributed)
        optimizer.synchronize()

    return {"alone": lambda: backward(plain), "MPI": with_mpi, "hvdlite": with_hvdlite}


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    columns = {"gradient": "{}"} | dict.fromkeys(["backward alone", "MPI", "hvdlite"], "{:.2f} ms")
    columns["MPI / hvdlite"] = "{:.2f}"
    results = table("Gradient synchronization: cost over backward alone", columns, "time (ms)")
    for nbytes in (1 << 20, 1 << 22, 1 << 24, 1 << 26):
        times = interleaved(variants_for(nbytes), rounds=max(15, min(60, (1 << 30) // nbytes)))
        mpi, ours = times["MPI"] - times["alone"], times["hvdlite"] - times["alone"]
        milliseconds = [seconds * 1e3 for seconds in (times["alone"], mpi, ours)]
        results.row(size_name(nbytes), *milliseconds, mpi / ours)


if __name__ == "__main__":
    main()
