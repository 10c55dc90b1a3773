"""Why gradients were computed too often, or are about to be lost: each cause with its advice."""

import traceback

_advice_of_another = (
    "Another DistributedOptimizer has stepped since, so its backward pass went through these "
    "parameters, too. Keep it out of them (requires_grad_(False) meanwhile, or .detach() what "
    "goes in), or drop what it has left in them: optimizer.synchronize(), on all ranks, before "
    "optimizer.zero_grad()"
)


class Uses:
    """Remembers what the advice depends on: whether other optimizers have reduced meanwhile."""

    _all = 0  # reductions of all optimizers of this process

    def __init__(self) -> None:
        self._own = self._others_before = 0

    def begin(self) -> None:
        """The first gradient since the last reduction has been computed."""
        self._others_before = Uses._all - self._own

    def reduced(self) -> None:
        """The optimizer has reduced its gradients."""
        Uses._all += 1
        self._own += 1

    def _another_has_stepped(self) -> bool:
        return Uses._all - self._own != self._others_before

    def too_many(self, name: str, passes: int) -> str:
        """What to say when a gradient was computed more often than `passes` times."""
        told = (
            f"gradients of {name} were computed more than backward_passes_per_step={passes} times "
            "before step(). "
        )
        if any("torch/utils/checkpoint" in frame.filename for frame in traceback.extract_stack()):
            return told + (
                "Reentrant checkpointing computes them in parts: write "
                "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
            )
        if self._another_has_stepped():
            return told + _advice_of_another
        return told + (
            "With several losses, call backward() once, on their sum. Raise "
            "backward_passes_per_step to accumulate gradients"
        )

    def lost(self) -> str:
        """What to say when gradients are about to be set to zero before they were used."""
        told = (
            "optimizer.zero_grad() was called between loss.backward() and optimizer.step() or "
            "optimizer.synchronize(). "
        )
        if self._another_has_stepped():
            return told + _advice_of_another
        return told + (
            "Call it before backward() or after step(). To leave out a step, call "
            "optimizer.synchronize() in its place, on all ranks"
        )
