"""What the benchmarks share: interleaved timing, the small CNN, and how a table begins."""

import socket
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from mpi4py import MPI
from table import Table

import hvdlite

COMM = MPI.COMM_WORLD


def interleaved(
    variants: dict[str, Callable[[], None]],
    rounds: int,
    calls: int = 1,
    warmup: int = 3,
    finish: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Seconds of one call of each variant: medians of `rounds` rounds, taken in turn.

    Machines drift; what is measured in turn drifts together, so ratios hold.
    A round is `calls` calls of one variant, one after the other. It starts on all ranks together,
    and its time is that of the slowest rank. `finish`, called at the end of a round, waits for what
    the calls have only put into a queue, such as a GPU's.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + warmup):
        for name, call in variants.items():
            COMM.Barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            finish()
            spent = COMM.allreduce(time.perf_counter() - start, op=MPI.MAX)
            if number >= warmup:
                times[name].append(spent / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def small_cnn() -> torch.nn.Module:
    """1.2 million parameters, for images of 1 x 28 x 28."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def start_torch(backend: str, **options) -> None:
    """Connect torch.distributed over loopback, at a port that the system picks."""
    port = None
    if COMM.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    port = COMM.bcast(port)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(
        backend, init_method=address, rank=COMM.rank, world_size=COMM.size, **options
    )


def table(title: str, columns: dict[str, str], unit: str) -> Table:
    """A table that rank 0 prints and keeps; see `Table`."""
    library = MPI.Get_library_version().split(",")[0].split("\n")[0]
    facts = [
        f"{COMM.size} ranks, {torch.get_num_threads()} thread a rank",
        f"torch {torch.__version__}",
        library,
        f"hvdlite {hvdlite.__version__}",
    ]
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        facts += [torch.cuda.get_device_name(), f"NCCL {nccl}"]
    return Table(title, ", ".join(facts), columns, unit, silent=COMM.rank != 0)


def size_name(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
