"""Allreduce on the CPU: hvdlite beside Open MPI and gloo, in one run.

    horovodrun -np 2 python benchmarks/allreduce.py

- buffer: the fusion buffer's collective alone, the gradients lying in shared memory already
- tensor: `hvd.allreduce_` of any tensor, from the call to the result
- MPI: the MPI library's own allreduce, in place
- gloo: torch.distributed.all_reduce
"""

import torch
import torch.distributed as dist
from common import COMM, heading, interleaved, say, size_name, start_torch
from mpi4py import MPI

import hvdlite.torch as hvd
from hvdlite import basics
from hvdlite.torch.buckets import Bucket
from hvdlite.torch.gpu_buckets import make_buckets


def one_bucket(nbytes: int) -> Bucket:
    """A gradient bucket of this size, placed where DistributedOptimizer places it."""
    param = torch.nn.Parameter(torch.zeros(nbytes // 4))
    (bucket,) = make_buckets([param], None, basics.engine().name("benchmark"), 0)
    return bucket


def variants_for(nbytes: int) -> dict:
    bucket = one_bucket(nbytes)
    tensor = torch.zeros(nbytes // 4)
    engine = basics.engine()

    def buffer() -> None:
        engine.wait(engine.submit(bucket.request("bucket", hvd.Sum)))

    return {
        "buffer": buffer,
        "tensor": lambda: hvd.allreduce_(tensor, name="tensor", op=hvd.Sum),
        "MPI": lambda: COMM.Allreduce(MPI.IN_PLACE, tensor.numpy()),
        "gloo": lambda: dist.all_reduce(tensor),
    }


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    start_torch("gloo")
    heading("Allreduce of one float32 tensor")
    say("| bytes | buffer | tensor | MPI | gloo | MPI / buffer | MPI / tensor | gloo / tensor |")
    say("|---|---|---|---|---|---|---|---|")
    for nbytes in (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28):
        rounds = max(9, min(40, (1 << 28) // nbytes))
        calls = max(1, min(50, (1 << 22) // nbytes))
        times = interleaved(variants_for(nbytes), rounds, calls)
        cells = " | ".join(f"{value * 1e6:,.1f} us" for value in times.values())
        ratios = (
            times["MPI"] / times["buffer"],
            times["MPI"] / times["tensor"],
            times["gloo"] / times["tensor"],
        )
        say(f"| {size_name(nbytes)} | {cells} | " + " | ".join(f"{r:.1f}" for r in ratios) + " |")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
