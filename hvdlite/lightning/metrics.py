"""Metrics of torchmetrics over all ranks; by themselves they know torch.distributed only."""

import math
from typing import Any

import torch
from torchmetrics import Metric

from hvdlite.basics import is_initialized, size
from hvdlite.objects import allgather_object
from hvdlite.torch.ops import allgather


def share_metrics(module: torch.nn.Module) -> None:
    """Let the metrics of a model that gather in no way of their own gather over all ranks."""
    for metric in module.modules():
        if isinstance(metric, Metric) and metric.dist_sync_fn is None:
            metric.dist_sync_fn = gather
            metric.distributed_available_fn = several_ranks


def several_ranks() -> bool:
    """Whether there are other ranks to gather from."""
    return is_initialized() and size() > 1


def gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Each rank's tensor, in rank order; their shapes may differ. `group` is torchmetrics' own."""
    shapes = allgather_object(tuple(tensor.shape))
    parts = allgather(tensor.reshape(-1)).split([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
