"""What the benchmarks share: interleaved timing, the small CNN, and a table."""

import platform
import statistics
import time
from collections.abc import Callable

import torch
from mpi4py import MPI

import hvdlite

COMM = MPI.COMM_WORLD


def interleaved(
    variants: dict[str, Callable[[], None]], rounds: int, warmup: int = 3
) -> dict[str, float]:
    """Seconds of one call of each variant: medians of `rounds` calls, taken in turn.

    Machines drift; what is measured in turn drifts together, so ratios hold.
    Each call starts on all ranks together, and its time is that of the slowest rank.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + warmup):
        for name, call in variants.items():
            COMM.Barrier()
            start = time.perf_counter()
            call()
            spent = COMM.allreduce(time.perf_counter() - start, op=MPI.MAX)
            if number >= warmup:
                times[name].append(spent)
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


def say(text: str = "") -> None:
    """Print on rank 0."""
    if COMM.rank == 0:
        print(text, flush=True)


def heading(title: str) -> None:
    library = MPI.Get_library_version().split(",")[0].split("\n")[0]
    say(f"# {title}")
    say(
        f"{COMM.size} ranks, {torch.get_num_threads()} thread a rank, "
        f"{platform.machine()}, torch {torch.__version__}, {library}, hvdlite {hvdlite.__version__}"
    )


def size_name(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
