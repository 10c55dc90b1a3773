"""What a rank computes on: its GPU, or its share of the cores."""

import os
from collections.abc import Sequence

import torch

from hvdlite.basics import local_rank, local_size, rank


def devices_of_host(given: Sequence[torch.device]) -> list[torch.device]:
    """The device of each rank of this host, by local_rank.

    `given` are those that the Trainer has made of its arguments. Where they are as many as the
    ranks, each rank has one of them. `devices=1` and "auto" don't count ranks, though, as the
    launcher does: then each has the GPU of its local_rank, or, where its launcher lets each rank
    see one GPU only, that one. Raises ValueError where there are fewer GPUs than ranks.
    """
    first = given[0]
    if first.type != "cuda":
        return [first] * local_size()
    if len(given) >= local_size():
        return list(given[: local_size()])
    count = torch.cuda.device_count()
    if count == 1:
        return [torch.device("cuda", 0)] * local_size()
    if count >= local_size():
        return [torch.device("cuda", index) for index in range(local_size())]
    raise ValueError(
        f"rank {rank()} is number {local_rank()} of {local_size()} ranks on its host, which has "
        f"{count} GPUs: start at most {count} ranks a host, or use Trainer(accelerator='cpu')"
    )


def share_cores() -> None:
    """Compute in at most this rank's share of the host's cores; fewer threads stay as they are."""
    mine = len(os.sched_getaffinity(0))
    share = min(mine, max(1, (os.cpu_count() or 1) // local_size()))
    torch.set_num_threads(min(share, torch.get_num_threads()))
