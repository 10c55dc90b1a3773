"""DistributedOptimizer(op=Adasum): each rank steps alone, then the ranks combine their steps.

Adasum adds up vectors by their directions and lengths. What the optimizer makes of a gradient has
the length of a real step, so it is the change of the parameters that is combined, and not the
gradient: after `step()` every rank's parameters are the old ones plus the Adasum of all changes.
"""

from collections.abc import Callable
from typing import Any

import torch

from hvdlite.request import ADASUM
from hvdlite.torch.allreduce_ops import grouped_allreduce
from hvdlite.torch.gradients import GradientSync
from hvdlite.torch.mixin import DistributedMixin
from hvdlite.torch.opaque import opaque


class StepSync(GradientSync):
    """Counts backward passes like its base, but reduces the changes that a step has made."""

    def parameters(self, param_groups: list[dict[str, Any]]) -> list[torch.Tensor]:
        self.param_groups = param_groups  # load_state_dict makes new ones
        self._add_hooks()  # for parameters that were frozen or not there before
        return self._parameters()

    def combine(self, params: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        """Make each parameter what it was before plus the Adasum of all ranks' changes."""
        self._warn_of_early_step()
        self._clear()
        changes = [param - start for param, start in zip(params, before, strict=True)]
        options = self.options
        combined = grouped_allreduce(
            changes, compression=options.compression, op=ADASUM, process_set=options.process_set
        )
        for param, start, change in zip(params, before, combined, strict=True):
            torch.add(start, change, out=param)
        self._uses.reduced()


class AdasumMixin(DistributedMixin):
    """The methods of an optimizer whose steps are combined, and not its gradients."""

    _sync: StepSync

    def synchronize(self) -> None:
        """Does nothing: the gradients stay this rank's own, and can be clipped before `step()`."""

    def skip_synchronize(self) -> None:
        """Raises AssertionError: a step without the other ranks would make the models differ."""
        raise AssertionError(
            "skip_synchronize() makes no sense with op=hvd.Adasum: step() itself brings the ranks "
            "together. Clip gradients between backward() and step(), without synchronize()"
        )

    def _distributed_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the wrapped optimizer's step on this rank's gradients, then combine all steps."""
        self._opt_called = True  # for the schedulers' check of the order of calls
        base_step = super(DistributedMixin, self).step
        params = self._sync.parameters(self.param_groups)
        with torch.no_grad():
            before = [param.clone() for param in params]
        loss = base_step() if closure is None else base_step(lambda: self._evaluate(closure))
        with torch.no_grad():
            self._sync.combine(params, before)
        return loss

    _distributed_step._wrapped_by_lr_sched = True
    opaque(_distributed_step)

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._sync.forget()  # an optimizer may call the closure again
        return loss
