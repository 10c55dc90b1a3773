"""Allreduce on the CPU: hvdlite beside Open MPI and gloo, in one run.

    horovodrun -np 2 python benchmarks/allreduce.py

- buffer: the fusion buffer's collective alone, the gradients lying in shared memory already
- tensor: `hvd.allreduce_` of any tensor, from the call to the result
- MPI: the MPI library's own allreduce, in place
- gloo: torch.distributed.all_reduce
- ring, server: hvdlite's ring of messages and its parameter server, which HVDLITE_ALLREDUCE
  chooses, without the agreement between the ranks
"""

import numpy as np
import torch
import torch.distributed as dist
from common import COMM, interleaved, size_name, start_torch, table
from mpi4py import MPI

import hvdlite.torch as hvd
from hvdlite import testing
from hvdlite.collectives.parameter_server import ParameterServerCollectives
from hvdlite.collectives.ring import RingCollectives
from hvdlite.gradients.reducer import Bucket, Gradient
from hvdlite.torch.gpu_buckets import make_buckets


def one_bucket(nbytes: int) -> Bucket:
    """A gradient bucket of this size, placed where DistributedOptimizer places it."""
    param = torch.nn.Parameter(torch.zeros(nbytes // 4))
    gradient = Gradient("benchmark", tuple(param.shape), np.dtype(np.float32))
    (bucket,) = make_buckets([gradient], [0], [param], None)
    testing.run(allocation := bucket.allocation(f"benchmark.{nbytes}"))
    bucket.use_segment(allocation.result)
    return bucket


def variants_for(nbytes: int) -> dict:
    bucket = one_bucket(nbytes)
    tensor = torch.zeros(nbytes // 4)
    group = testing.collectives().group
    ring, server = RingCollectives(group), ParameterServerCollectives(group)

    def buffer() -> None:
        testing.run(bucket.request("bucket", hvd.Sum, (1.0, 1.0), traced=False))

    return {
        "buffer": buffer,
        "tensor": lambda: hvd.allreduce_(tensor, name="tensor", op=hvd.Sum),
        "MPI": lambda: COMM.Allreduce(MPI.IN_PLACE, tensor.numpy()),
        "gloo": lambda: dist.all_reduce(tensor),
        "ring": lambda: ring.allreduce(tensor.numpy(), hvd.Sum, _nothing),
        "server": lambda: server.allreduce(tensor.numpy(), hvd.Sum, _nothing),
    }


def _nothing(array: object) -> None:
    """Neither average nor scale."""


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    start_torch("gloo")
    times_of = ["buffer", "tensor", "MPI", "gloo", "ring", "server"]
    columns = {"bytes": "{}"} | dict.fromkeys(times_of, "{:,.1f} us")
    ratios = [("MPI", "buffer"), ("MPI", "tensor"), ("gloo", "tensor")]
    columns |= dict.fromkeys(map(" / ".join, ratios), "{:.1f}")
    results = table("Allreduce of one float32 tensor on the CPU", columns, "time (us)")
    for nbytes in (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30):
        rounds = max(5, min(40, (1 << 28) // nbytes))
        calls = max(1, min(50, (1 << 22) // nbytes))
        times = interleaved(variants_for(nbytes), rounds, calls)
        cells = [seconds * 1e6 for seconds in times.values()]
        cells += [times[peer] / times[ours] for peer, ours in ratios]
        results.row(size_name(nbytes), *cells)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
