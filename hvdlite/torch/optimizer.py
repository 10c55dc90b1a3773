"""DistributedOptimizer: an optimizer that steps with the gradients of all ranks."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch

from hvdlite.calls import check_gradients, check_passes
from hvdlite.collectives.adasum import check_size
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE
from hvdlite.torch import ops
from hvdlite.torch.adasum import AdasumMixin, StepSync
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.functions import check_optimizer
from hvdlite.torch.gradients import GradientSync
from hvdlite.torch.handles import synchronize


class _Step(property):
    """`step` as a data descriptor.

    Schedulers replace `step` on the optimizer object; one made from the plain optimizer would
    so hide ours, since both objects share their attributes. `hooked` tells torch that its step
    hooks need not be added: the wrapped class's own step runs them.
    """

    hooked = True


class DistributedMixin:
    """The methods that DistributedOptimizer puts in front of those of the optimizer's class."""

    _sync: GradientSync

    def synchronize(self) -> None:
        """Reduce the gradients now, for what must happen between that and `step()`, like clipping.

        Use `with optimizer.skip_synchronize(): optimizer.step()` afterwards.
        """
        self._sync.synchronize(self.param_groups)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self):
        """Within this context, `step()` takes the gradients as `synchronize()` has left them."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def _distributed_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients over the ranks, then take the wrapped optimizer's step.

        With a closure, the gradients of each of its calls are reduced, and LBFGS, whose search
        depends on the loss, sees the mean loss.
        """
        self._opt_called = True  # for the schedulers' check of the order of calls
        base_step = super(type(self), type(self)).step.__get__(self)
        if closure is not None and self._should_synchronize:
            return base_step(lambda: self._evaluate(closure))
        if self._should_synchronize:
            if self._synchronized and not self._sync.counted():
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() although the "
                    "gradients are reduced already, by optimizer.synchronize(). Write "
                    "`with optimizer.skip_synchronize(): optimizer.step()`",
                    stacklevel=2,
                )
            else:
                self._sync.synchronize(self.param_groups)
        self._synchronized = False
        return base_step() if closure is None else base_step(closure)

    _distributed_step._wrapped_by_lr_sched = True

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._sync.synchronize(self.param_groups)
        self._synchronized = False
        if isinstance(self, torch.optim.LBFGS) and self._sync.active:
            mean = torch.as_tensor(loss).detach().clone()
            handle = ops.allreduce_async_(
                mean, name="lbfgs.loss", op=AVERAGE, process_set=self._sync.process_set
            )
            return synchronize(handle)
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As in the wrapped optimizer.

        Raises AssertionError between backward() and step(): the gradients would be lost.
        """
        if self._sync.in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called between loss.backward() and optimizer.step() "
                "or optimizer.synchronize(); call it before backward() or after step()"
            )
        self._synchronized = False
        super(type(self), self).zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As in the wrapped optimizer; gradients counted so far are forgotten."""
        self._sync.forget()
        self._synchronized = False
        super(type(self), self).load_state_dict(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up their gradients before a reduction."""
        self._sync.backward_passes_per_step = check_passes(passes)

    @property
    def backward_passes_per_step(self) -> int:
        return self._sync.backward_passes_per_step

    def __reduce_ex__(self, protocol: int) -> tuple:
        # Saved or copied as the plain optimizer, so that it loads without hvdlite.
        return _plain, (type(self).__mro__[1], self.__getstate__())


def _plain(base: type, state: dict) -> torch.optim.Optimizer:
    optimizer = base.__new__(base)
    optimizer.__setstate__(state)
    return optimizer


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
    names = [name for name, _ in named]
    doubles = sorted({name for name in names if names.count(name) > 1})
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


def _check_groups(groups: int | list | None) -> None:
    if isinstance(groups, list):
        params = [param for group in groups for param in group]
        if not all(isinstance(param, torch.Tensor) for param in params):
            raise ValueError("groups must consist of lists of torch.Tensor")
        if len(set(map(id, params))) < len(params):
            raise ValueError("groups: a parameter may be in one group only")
    elif groups is not None and (not isinstance(groups, int) or groups <= 0):
        raise ValueError("groups must be a positive number or a list of lists of tensors")


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
) -> torch.optim.Optimizer:
    """Wrap an optimizer so that `step()` first reduces the gradients over all ranks.

    The result is an instance of the optimizer's class and shares all its attributes with it:
    parameter groups, state, and what schedulers do to them.

    named_parameters: names for messages and the timeline; must cover all parameters.
    compression: `Compression.none`, `.fp16`, `.bf16`, or a Compressor of one's own.
    backward_passes_per_step: gradients of so many backward passes are added up locally first.
    op: Average, Sum or Adasum; with Adasum the ranks' steps are combined, not their gradients.
    gradient_predivide_factor: with Average, divide by this before the sum and by size/this after.
    num_groups, groups: accepted; all gradients of a dtype are reduced together anyway.
    sparse_as_dense: reduce sparse gradients as dense ones.
    process_set: the ranks that train this model together.

    Raises ValueError or TypeError for arguments that make no sense, and NotImplementedError for
    Adasum on a number of ranks that is no power of two.
    """
    check_optimizer(optimizer, "DistributedOptimizer")
    if hasattr(optimizer, "_distributed_step"):
        raise ValueError("this optimizer is a DistributedOptimizer already; wrap it once")
    check_gradients(
        compression, process_set, op, gradient_predivide_factor, backward_passes_per_step
    )
    _check_groups(groups if groups is not None or num_groups == 0 else num_groups)
    names = _check_names(optimizer, named_parameters)
    sync_type, mixins = GradientSync, vars(DistributedMixin)
    if op == ADASUM and process_set.included() and process_set.size() > 1:
        check_size(process_set.size(), "DistributedOptimizer")
        sync_type, mixins = StepSync, mixins | vars(AdasumMixin)
    sync = sync_type(
        optimizer.param_groups,
        names,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
    )
    base = type(optimizer)
    methods = {
        key: value
        for key, value in mixins.items()
        if key not in ("__dict__", "__weakref__", "__annotations__")
    }
    methods["step"] = _Step(
        lambda self: self._distributed_step, lambda self, patched: None, doc=base.step.__doc__
    )
    wrapped = object.__new__(type(base.__name__, (base,), methods))
    wrapped.__dict__ = optimizer.__dict__
    wrapped._sync = sync
    wrapped._parameter_names = names  # some programs look at it
    wrapped._synchronized = False
    wrapped._should_synchronize = True
    return wrapped
