"""Start all ranks from the same state: parameters and optimizer state."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hvdlite.basics import size
from hvdlite.objects import allgather_object, broadcast_object  # noqa: F401
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.torch.handles import synchronize
from hvdlite.torch.ops import broadcast_async_


def broadcast_parameters(
    params: dict[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters with those of rank `root_rank`.

    `params` is a `state_dict()`, `named_parameters()`, or a list of tensors. Entries that are no
    tensors are left alone. Raises ValueError for anything else.
    """
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, torch.Tensor)):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(
            f"broadcast_parameters takes model.state_dict() or model.named_parameters(), not "
            f"{type(params).__name__}"
        )
    handles = [
        broadcast_async_(param.data, root_rank, name, process_set)
        for name, param in named
        if isinstance(param, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def check_optimizer(optimizer: Any, title: str) -> None:
    """Raise TypeError for what is no optimizer."""
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"{title} takes an optimizer, not {type(optimizer).__name__}")


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite an optimizer's state and options (learning rate, ...) with those of `root_rank`.

    Works before and after wrapping, for optimizers with and without state, and where only the
    root has a state (loaded from a checkpoint). `model` is accepted for compatibility.
    Raises ValueError for LBFGS, as Horovod does.
    """
    check_optimizer(optimizer, "broadcast_optimizer_state")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS can't be broadcast")
    if size() == 1:
        return
    state = optimizer.state_dict()
    if not state["state"]:
        # Horovod makes an optimizer's state by a step with gradients of zeros, and leaves these
        # behind; programs may look at them.
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.requires_grad and param.grad is None:
                    param.grad = torch.zeros_like(param)
    # Tensors are sent as tensors; the rest, with the tensors' shapes, as one object before them.
    plan = walk(state, lambda tensor: tensor.to("meta"))
    plan = broadcast_object(plan, root_rank, "optimizer_state", process_set)
    mine: list[torch.Tensor] = []
    if process_set.ranks[process_set.rank()] == root_rank:
        walk(state, lambda tensor: mine.append(tensor.cpu()))  # as the others' new ones
    else:
        plan = walk(plan, lambda meta: _new_tensor(meta, mine))
    handles = [
        broadcast_async_(tensor, root_rank, f"optimizer_state.{i}", process_set)
        for i, tensor in enumerate(mine)
    ]
    for handle in handles:
        synchronize(handle)
    if process_set.ranks[process_set.rank()] != root_rank:
        load_in_place(optimizer, plan)


def _new_tensor(meta: torch.Tensor, into: list[torch.Tensor]) -> torch.Tensor:
    into.append(torch.empty(meta.shape, dtype=meta.dtype))
    return into[-1]


def walk(item: Any, replace: Callable[[torch.Tensor], Any]) -> Any:
    """A copy of nested dicts, lists and tuples with each tensor replaced, in a fixed order."""
    if isinstance(item, torch.Tensor):
        return replace(item)
    if isinstance(item, dict):
        return {key: walk(value, replace) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)([walk(value, replace) for value in item])
    return item


def load_in_place(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state but keep the dictionaries of the parameter groups, which schedulers hold."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for kept, loaded in zip(groups, optimizer.param_groups, strict=True):
        kept.update(loaded)
    optimizer.param_groups[:] = groups
