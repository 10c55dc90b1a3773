"""Sparse gradients: the rows of all ranks one behind the other, which is their sum."""

from collections.abc import Callable

import torch

from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE, SUM
from hvdlite.torch.handles import synchronize
from hvdlite.torch.ops import allgather_async


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start to add up sparse (COO) tensors; returns a function that waits for the result.

    Raises ValueError for a tensor that is not sparse and an `op` other than Sum and Average.
    """
    if op not in (SUM, AVERAGE):
        raise ValueError("sparse tensors can be reduced with op=hvd.Sum or hvd.Average only")
    if not getattr(tensor, "is_sparse", False):
        raise ValueError(
            "sparse_allreduce_async takes a sparse (COO) tensor; for others: allreduce"
        )
    tensor = tensor.coalesce()
    indices = allgather_async(tensor.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor.values(), f"{name}.values", process_set)

    def result() -> torch.Tensor:
        rows = synchronize(indices).t()
        summed = synchronize(values)
        if op == AVERAGE:
            summed = summed / process_set.size()
        return torch.sparse_coo_tensor(rows, summed, tensor.shape).coalesce()

    return result


def gather_sparse(
    grad: torch.Tensor | None,
    param: torch.Tensor,
    name: str,
    average: bool,
    process_set: ProcessSet,
) -> torch.Tensor:
    """The sum or mean over ranks of a parameter's sparse gradient; None counts as empty."""
    if grad is None:
        empty = torch.empty((1, 0), dtype=torch.long, device=param.device)
        grad = torch.sparse_coo_tensor(empty, param.new_empty((0, *param.shape[1:])), param.shape)
    elif not grad.is_sparse:
        grad = grad.to_sparse(1)
    return sparse_allreduce_async(grad, name, AVERAGE if average else SUM, process_set)()
