"""Mistakes in the script of PyTorch Lightning, most of whose steps are the strategy's own."""

from . import Edits, Mistake, mistake

_RATE = "self.rate = args.base_lr * hvd.size()"
_LOSS = "on_step=False, on_epoch=True, sync_dist=True"
_WARM = "factor = (1 + (hvd.size() - 1) * warm) / hvd.size()"
_ZERO = "        if trainer.is_global_zero:  # Step 7"


def _in(*edits: tuple[str, str]) -> dict[str, Edits]:
    return {"fashion_mnist_lightning": list(edits)}


MISTAKES: list[Mistake] = [
    mistake("rate-unscaled", "the learning rate is not scaled", "rate",
            **_in((_RATE, "self.rate = args.base_lr"))),
    mistake("rate-twice", "the learning rate is scaled twice", "rate",
            **_in((_RATE, f"{_RATE} * hvd.size()"))),
    mistake("prints-everywhere", "every rank prints and writes", "rank0",
            **_in((f"{_ZERO}: one process prints and writes\n", "        if True:\n"),
                  (f"{_ZERO}\n", "        if True:\n"))),
    mistake("metrics-local", "the loss is reported as rank 0 has it", "metrics",
            **_in((_LOSS, "on_step=False, on_epoch=True"))),
    mistake("no-warmup", "the rate is that of all ranks from the first step on", "schedule",
            **_in((_WARM, "factor = 1.0"))),
]  # fmt: skip
