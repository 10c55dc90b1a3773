"""Allreduce on GPUs: hvdlite beside NCCL called through CuPy and through torch.distributed.

    horovodrun -np 2 python benchmarks/gpu_allreduce.py

- bucket: a gradient bucket, as DistributedOptimizer reduces it, without packing
- tensor: `hvd.allreduce_` of any tensor
- CuPy: the bare call, without any agreement between the ranks
- torch: torch.distributed.all_reduce

The time is that of one call among many in a row, until the GPU is through.
Bus bandwidth is 2 (N - 1) / N bytes over that time.
"""

import cupy
import numpy as np
import torch
import torch.distributed as dist
from common import COMM, interleaved, size_name, start_torch, table
from cupy.cuda import nccl

import hvdlite.torch as hvd
from hvdlite import testing
from hvdlite.gpu import cuda
from hvdlite.gradients.reducer import Gradient
from hvdlite.torch.gpu_buckets import GPUBucket


def variants_for(nbytes: int, communicator: nccl.NcclCommunicator) -> dict:
    tensor = torch.zeros(nbytes // 4, device="cuda")
    gradient = Gradient("tensor", tuple(tensor.shape), np.dtype("float32"), cuda.NAME)
    bucket = GPUBucket([gradient], [0], [tensor], torch.float32)
    bucket.use_segment(None)
    stream = torch.cuda.current_stream().cuda_stream
    where = tensor.data_ptr(), tensor.data_ptr(), tensor.numel()

    return {
        "bucket": lambda: testing.run(bucket.request("bucket", hvd.Sum, (1.0, 1.0), False)),
        "tensor": lambda: hvd.allreduce_(tensor, name="tensor", op=hvd.Sum),
        "CuPy": lambda: communicator.allReduce(*where, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream),
        "torch": lambda: dist.all_reduce(tensor),
    }


def main() -> None:
    hvd.init()
    device = torch.device("cuda", hvd.local_rank())
    torch.cuda.set_device(device)
    cupy.cuda.Device(device.index).use()
    start_torch("nccl", device_id=device)
    number = COMM.bcast(nccl.get_unique_id())
    communicator = nccl.NcclCommunicator(COMM.size, number, COMM.rank)
    kinds = ["bucket", "tensor", "CuPy", "torch"]
    columns = {"bytes": "{}"} | dict.fromkeys(kinds, "{:,.1f} us")
    columns |= {f"bus bandwidth / GB/s: {kind}": "{:,.1f}" for kind in kinds}
    results = table("Allreduce of one float32 tensor on the GPU", columns, "time (us)")
    factor = 2 * (COMM.size - 1) / COMM.size
    for nbytes in (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30):
        variants = variants_for(nbytes, communicator)
        calls = 200 if nbytes <= 1 << 26 else 20
        times = interleaved(variants, 9, calls, finish=torch.cuda.synchronize)
        cells = [seconds * 1e6 for seconds in times.values()]
        cells += [factor * nbytes / seconds / 1e9 for seconds in times.values()]
        results.row(size_name(nbytes), *cells)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
