"""A GPU for each of the ranks of a test, also where there is only one."""

import os


def take_gpu() -> None:
    """Make this rank's GPU the current one; called after `hvd.init()`.

    Where there are fewer GPUs than ranks, the ranks share them. NCCL allows that to ranks of
    different hosts only, and is told that these are such; it then goes through sockets.
    """
    import torch

    import hvdlite

    count, rank = torch.cuda.device_count(), hvdlite.local_rank()
    if count < hvdlite.local_size():
        os.environ |= {"NCCL_HOSTID": f"rank {rank}", "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.set_device(rank % count)
