"""What the callbacks do, for Keras 3 as for tf_keras; each binding makes them its Keras's."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdlite import basics, calls, objects
from hvdlite.keras.functions import read, write


def _list(variables: Any) -> list[Any]:
    """A list of variables from what is a list in some optimizers and a method in others."""
    return list(variables if isinstance(variables, list) else variables())


def _get(optimizer: Any, name: str) -> Any:
    value = getattr(optimizer, name, None)
    return float(read(value)) if hasattr(value, "numpy") else value


def _check_settable(optimizer: Any) -> None:
    rate = getattr(optimizer, "_learning_rate", None)
    rate = getattr(optimizer, "_hyper", {}).get("learning_rate", rate)
    if callable(rate) and hasattr(rate, "get_config"):
        raise ValueError(
            f"the optimizer's learning rate is a schedule, {type(rate).__name__}, which no "
            "callback can change: give the optimizer a number, or leave the callback out"
        )


def _set(optimizer: Any, name: str, value: float) -> None:
    held = getattr(optimizer, name)
    if hasattr(held, "assign"):
        write(held, value)
    else:
        setattr(optimizer, name, value)


class BroadcastGlobalVariables:
    """Overwrites the variables of model and optimizer with the root's after the first batch.

    Only then do all of them exist. Variables that a later epoch makes follow then.
    `local_variables` stay as they are on each rank.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank, self.device = root_rank, device
        self.broadcast_done = False
        # By id(); the variables are kept, so that no other one gets the number of one of them.
        self._local, self._known = dict[int, Any](), dict[int, Any]()
        if hasattr(local_variables, "assign"):
            local_variables = [local_variables]
        for variable in local_variables or ():
            if not hasattr(variable, "assign"):
                raise ValueError("local_variables must be variables")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leave this variable to each rank."""
        self._local[id(var)] = var

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._known = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.broadcast_done = False

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.broadcast_done:
            return
        self.broadcast_done = True
        new = [
            variable
            for variable in [*self.model.variables, *_list(self.model.optimizer.variables)]
            if id(variable) not in self._known and id(variable) not in self._local
        ]
        self._known.update((id(variable), variable) for variable in new)
        started = [
            calls.broadcast(np.array(read(variable), order="C"), self.root_rank) for variable in new
        ]
        for variable, call in zip(new, started, strict=True):
            write(variable, call.wait())

    on_train_batch_end = on_batch_end


class MetricAverage:
    """Makes each metric of an epoch the mean over ranks.

    It belongs before all callbacks that look at metrics. A metric that some rank lacks is
    left alone, with a warning.
    """

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        mine = {name: float(np.asarray(value)) for name, value in logs.items()}
        gathered = objects.allgather_object(mine)
        for name in sorted({name for each in gathered for name in each}):
            missing = [rank for rank, each in enumerate(gathered) if name not in each]
            if not missing:
                logs[name] = float(np.mean([each[name] for each in gathered]))
            elif basics.rank() not in missing:
                warnings.warn(
                    f"metric '{name}' is not averaged: there is none on rank "
                    f"{', '.join(map(str, missing))}. Give all ranks the same metrics, "
                    "validation data and callbacks before this one",
                    stacklevel=2,
                )


class LearningRateSchedule:
    """Sets the learning rate to `initial_lr` times `multiplier`, from start to end epoch.

    `multiplier` is a function of the epoch, or a number m, for m ** (epoch - start_epoch).
    With `staircase` it changes once an epoch, without it at each batch, the epoch being a
    fraction then. Without `initial_lr`, the optimizer's rate at the beginning counts.
    `momentum_correction` scales what momentum has gathered as the rate, when that changes
    (https://arxiv.org/abs/1706.02677, section 2.1).
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        multiplier: float | Callable[[float], float] = 1.0,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ):
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier = multiplier
        if not callable(multiplier):
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        _check_settable(self.model.optimizer)
        if self.initial_lr is None:
            self.initial_lr = _get(self.model.optimizer, "learning_rate")
        if not self.staircase and not self.steps_per_epoch:
            told = self.params.get
            rows = told("samples") or 0  # what is known in a session of TensorFlow 1
            self.steps_per_epoch = told("steps") or -(-rows // (told("batch_size") or 1))
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} can't know the number of steps of an epoch here: "
                    "give it steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        last = float("inf") if self.end_epoch is None else self.end_epoch
        if self.start_epoch <= self.current_epoch < last:
            if not self.staircase:
                self._adjust(self.current_epoch + batch / self.steps_per_epoch)
            elif batch == 0:
                self._adjust(self.current_epoch)

    on_train_batch_begin = on_batch_begin

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = _get(optimizer, "learning_rate")
        rate = self.initial_lr * self.multiplier(epoch)
        _set(optimizer, "learning_rate", rate)
        if self.momentum_correction and before and _get(optimizer, "momentum"):
            # A compiled step has its momentum for good, but what that acts on can be scaled.
            slots = [each["momentum"] for each in getattr(optimizer, "_slots", {}).values()]
            for name in ("momentums", "_momentums"):
                slots += getattr(optimizer, name, [])
            for slot in slots:
                write(slot, read(slot) * (rate / before))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = _get(self.model.optimizer, "learning_rate")


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from initial_lr / size() to initial_lr, batch by batch.

    `initial_lr` is the rate for all ranks together; without it, the optimizer's.
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        def multiplier(epoch: float) -> float:
            epoch += 1 / self.steps_per_epoch  # round numbers at the end of each epoch
            size = basics.size()
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        options = {"end_epoch": warmup_epochs, "momentum_correction": momentum_correction}
        options |= {"steps_per_epoch": steps_per_epoch, "staircase": False}
        super().__init__(initial_lr, multiplier, **options)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.end_epoch - 1 and basics.rank() == 0:
            rate = _get(self.model.optimizer, "learning_rate")
            print(f"\nEpoch {epoch + 1}: warm-up is over, the learning rate is {rate:g}.")


class BestModel:
    """Keeps the best model so far, in the file that its attribute `filepath` names."""

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq="epoch"
    ):
        options = {"monitor": monitor, "verbose": verbose, "mode": mode, "save_freq": save_freq}
        super().__init__(os.path.join(".", "best_model.keras"), save_best_only=True, **options)
