"""DistributedOptimizer: wraps an optimizer so that it steps with the gradients of all ranks."""

from collections import Counter
from collections.abc import Iterable

import torch

from hvdlite.collectives.adasum import check_size
from hvdlite.gradients.options import GradientOptions, check_groups
from hvdlite.gradients.wrapping import wrap
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE
from hvdlite.torch.adasum import AdasumMixin, StepSync
from hvdlite.torch.amp import reduce_before_scaling
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.functions import check_optimizer
from hvdlite.torch.gradients import GradientSync
from hvdlite.torch.mixin import DistributedMixin


def _check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The names of the optimizer's parameters; raises ValueError if they don't fit."""
    if named_parameters is None:
        return {
            param: f"noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, param in enumerate(group["params"])
        }
    named = list(named_parameters)
    if any(not isinstance(item, tuple) for item in named):
        raise ValueError(
            "named_parameters must be pairs of a name and a parameter, as model.named_parameters() "
            "gives them"
        )
    counts = Counter(name for name, _ in named)
    doubles = sorted(name for name, count in counts.items() if count > 1)
    if doubles:
        raise ValueError(
            f"named_parameters has names that occur twice: {', '.join(doubles)}. With several "
            "models, put a prefix of its own before each one's names"
        )
    by_param = {param: name for name, param in named}
    nameless = [
        tuple(param.shape)
        for group in optimizer.param_groups
        for param in group["params"]
        if param not in by_param
    ]
    if nameless:
        raise ValueError(
            f"named_parameters lacks {len(nameless)} of the optimizer's parameters (shapes "
            f"{', '.join(map(str, nameless[:5]))}); name all of them, or leave it out"
        )
    return by_param


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> DistributedMixin:
    """Wrap an optimizer so that `step()` first reduces the gradients over all ranks.

    The result is an instance of the optimizer's class and shares all its attributes with it:
    parameter groups, state, and what schedulers do to them.

    Args:
        named_parameters: names for messages and the timeline; must cover all parameters.
        compression: `Compression.none`, `.fp16`, `.bf16`, or a Compressor of one's own.
        backward_passes_per_step: gradients of so many backward passes are added up locally first.
        op: Average, Sum or Adasum; with Adasum the ranks' steps are combined, not their gradients.
        gradient_predivide_factor: with Average, divide by this before the sum and by size/this
            after.
        num_groups, groups: accepted; all gradients of a dtype are reduced together anyway.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: the ranks that train this model together.

    Raises ValueError or TypeError for arguments that make no sense, and NotImplementedError for
    Adasum on a number of ranks that is no power of two.
    """
    check_optimizer(optimizer, "DistributedOptimizer")
    if isinstance(optimizer, DistributedMixin):
        raise ValueError("this optimizer is a DistributedOptimizer already; wrap it once")
    check_groups(num_groups, groups)
    options = GradientOptions(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        process_set=process_set,
    )
    names = _check_names(optimizer, named_parameters)
    kind, mixin = GradientSync, DistributedMixin
    if op == ADASUM and options.active:
        check_size(process_set.size(), "DistributedOptimizer")
        kind, mixin = StepSync, AdasumMixin
    wrapped = wrap(optimizer, mixin)
    wrapped._sync = kind(optimizer.param_groups, names, options)
    wrapped._parameter_names = names  # some programs look at it
    wrapped._synchronized = False
    wrapped._should_synchronize = True
    reduce_before_scaling()
    return wrapped
