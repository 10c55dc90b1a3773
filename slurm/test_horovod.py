"""Every rank says who it is and where; then all of them count to see that they work together."""

import os
import socket

import horovod.torch as hvd
import torch

hvd.init()
node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or "none"
line = (
    f"rank {hvd.rank()} of {hvd.size()}: local rank {hvd.local_rank()} of {hvd.local_size()} "
    f"on {node}, sees GPUs {gpus}"
)
lines = hvd.allgather_object(line)
total = hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item()
if hvd.rank() == 0:
    print("\n".join(lines))
    print(f"{total:.0f} ranks added up to {total:.0f}: they work together.")
