"""The methods of an optimizer that steps with the gradients of all ranks."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hvdlite.gradients.options import check_passes
from hvdlite.gradients.wrapping import plain_class
from hvdlite.request import AVERAGE
from hvdlite.torch.allreduce_ops import allreduce_
from hvdlite.torch.gradients import GradientSync
from hvdlite.torch.opaque import opaque

# To type checkers the mixin is what it is in front of.
_Optimizer = torch.optim.Optimizer if TYPE_CHECKING else object


class _Step(property):
    """`step` as a data descriptor, since two objects share the wrapped optimizer's attributes.

    Schedulers put a `step` of their own on the optimizer object that they are given. One that is
    given the plain optimizer must not so hide the step that reduces; what is put on the wrapped
    one counts. `hooked` tells torch that its step hooks need not be added: the plain class's own
    step runs them.
    """

    hooked = True


class DistributedMixin(_Optimizer):
    """The methods that stand in front of those of the wrapped optimizer's class."""

    _sync: GradientSync
    _synchronized: bool
    _should_synchronize: bool
    step = _Step(
        lambda self: vars(self).get("_patched_step", self._distributed_step),
        lambda self, step: setattr(self, "_patched_step", step),
        lambda self: delattr(self, "_patched_step"),
    )

    def synchronize(self) -> None:
        """Reduce the gradients now, for what must happen between that and `step()`, like clipping.

        Use `with optimizer.skip_synchronize(): optimizer.step()` afterwards.
        """
        self._sync.synchronize(self.param_groups)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context, `step()` takes the gradients as `synchronize()` has left them."""
        before, self._should_synchronize = self._should_synchronize, False
        try:
            yield
        finally:
            self._should_synchronize = before

    def _is_reduced(self) -> bool:
        """Whether `synchronize()` has reduced the gradients that are there."""
        return self._sync.active and self._synchronized and not self._sync.counted()

    def _reduce_once(self) -> None:
        """`synchronize`, unless that has been done since the last step."""
        if not self._is_reduced():
            self.synchronize()

    @contextmanager
    def _reduced_step(self) -> Iterator[None]:
        """Around a step that may be taken or left out, with gradients that are reduced."""
        self._reduce_once()
        with self.skip_synchronize():
            yield
        self._synchronized = False

    def _distributed_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients over the ranks, then take the wrapped optimizer's step.

        With a closure, the gradients of each of its calls are reduced, and LBFGS, whose search
        depends on the loss, sees the mean loss.
        """
        self._opt_called = True  # for the schedulers' check of the order of calls
        step = super().step
        if closure is not None and self._should_synchronize:
            return step(lambda: self._evaluate(closure))
        if self._should_synchronize:
            if self._is_reduced():
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() although the "
                    "gradients are reduced already, by optimizer.synchronize(). Write "
                    "`with optimizer.skip_synchronize(): optimizer.step()`",
                    stacklevel=2,
                )
            else:
                self._sync.synchronize(self.param_groups)
        self._synchronized = False
        return step() if closure is None else step(closure)

    _distributed_step._wrapped_by_lr_sched = True

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._sync.synchronize(self.param_groups)
        self._synchronized = False
        if isinstance(self, torch.optim.LBFGS) and self._sync.active:
            mean = torch.as_tensor(loss).detach().clone()
            process_set = self._sync.options.process_set
            return allreduce_(mean, name="lbfgs.loss", op=AVERAGE, process_set=process_set)
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As in the wrapped optimizer.

        Raises AssertionError between backward() and step(): the gradients would be lost.
        """
        self._sync.check_nothing_is_lost()
        self._synchronized = False
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As in the wrapped optimizer; gradients counted so far are forgotten."""
        self._sync.forget()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up their gradients before a reduction."""
        self._sync.backward_passes_per_step = check_passes(passes)

    @property
    def backward_passes_per_step(self) -> int:
        return self._sync.backward_passes_per_step

    def __reduce_ex__(self, protocol: int) -> tuple:
        # Saved or copied as the plain optimizer, so that it loads without hvdlite.
        return _plain, (plain_class(type(self), DistributedMixin), self.__getstate__())


def _plain(base: type, state: dict) -> torch.optim.Optimizer:
    optimizer = base.__new__(base)
    optimizer.__setstate__(state)
    return optimizer


for _method in ("_distributed_step", "load_state_dict", "synchronize", "zero_grad"):
    opaque(getattr(DistributedMixin, _method))
