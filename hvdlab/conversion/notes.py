"""On a rank: what of a script's training is noted, and how each framework tells it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from ..check.observe.recorder import digest

if TYPE_CHECKING:
    from .observe import Seen

_MODULES = {"torch": "torch", "keras": "keras"}  # and TensorFlow for both of its forms


def hvd(framework: str) -> ModuleType:
    """Horovod's module for this framework."""
    return importlib.import_module(f"horovod.{_MODULES.get(framework, 'tensorflow')}")


def fresh(framework: str) -> None:
    """As a new process would be: not initialized, and with all cores."""
    module = hvd(framework)
    if module.is_initialized():
        module.shutdown()
    if framework == "torch":
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
    else:
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")  # it would warn that models are made again and again


@contextmanager
def taken(framework: str, seen: Seen, rank: int) -> Iterator[Callable[[dict], None]]:
    """While the script runs; gives a function that gets the script's names before main()."""
    from ..epoch_log import EpochLog

    add = EpochLog.add

    def report(self: Any, epoch: int, seconds: float, loss: float, accuracy: float) -> None:
        seen.reported.append((float(loss), float(accuracy)))
        add(self, epoch, seconds, loss, accuracy)

    notes = {
        "torch": _torch,
        "keras": _keras,
        "tensorflow": _tensorflow,
        "tensorflow1": _tensorflow1,
    }[framework]
    with patch.object(EpochLog, "add", report), notes(seen, rank) as prepare:
        yield prepare


def gpu_of(framework: str, lines: str, rank: int) -> int:
    """The number of the GPU that these lines take on this rank of two hosts with two GPUs each."""
    chosen: list[Any] = []
    horovod = SimpleNamespace(
        rank=lambda: rank, size=lambda: 4, local_rank=lambda: rank % 2, local_size=lambda: 2
    )
    names: dict[str, Any] = {"hvd": horovod, "os": os, "args": SimpleNamespace(no_cuda=False)}
    if framework == "torch":
        import torch

        names["torch"] = torch
        with (
            patch.object(torch.cuda, "is_available", lambda: True),
            patch.object(torch.cuda, "set_device", lambda d: chosen.append(torch.device(d).index
                         if not isinstance(d, int) else d)),
        ):  # fmt: skip
            exec(lines, names)
        index = names["device"].index
        return index if index is not None else (chosen or [0])[-1]
    import tensorflow as tf

    names["tf"] = tf
    with (
        patch.object(tf.config, "list_physical_devices", lambda kind=None: [0, 1]),
        patch.object(tf.config, "set_visible_devices", lambda d, kind=None: chosen.append(d)),
    ):
        exec(lines, names)
    last = chosen[-1]
    return last[0] if isinstance(last, list) else last


def _numbers(name: str) -> dict[bytes, int]:
    """The number of each training image of a data set, by its bytes."""
    from .. import data

    return {image.tobytes(): n for n, image in enumerate(data.load(name).train_images[:2048])}


@contextmanager
def _torch(seen: Seen, rank: int) -> Iterator[Callable[[dict], None]]:
    import torch
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    from ..torch_data import ImageDataset

    read = ImageDataset.__getitems__
    current: list[int] = []

    def weights(optimizer: Any) -> list[Any]:
        return [p.detach().numpy() for group in optimizer.param_groups for p in group["params"]]

    def before(optimizer: Any, *_: Any) -> None:
        seen.rates.append(optimizer.param_groups[0]["lr"])
        seen.before.append(digest(weights(optimizer)))
        if not seen.update:
            seen.update = (-weights(optimizer)[-1]).tolist()

    def after(optimizer: Any, *_: Any) -> None:
        seen.after.append(digest(weights(optimizer)))
        if len(seen.after) == 1:
            seen.update = (np.asarray(seen.update) + weights(optimizer)[-1]).tolist()

    def note_reading(self: Any, indices: Any) -> Any:
        if torch.is_grad_enabled():
            current.extend(int(i) for i in indices)
        elif current:
            seen.epochs.append(current.copy())
            current.clear()
        return read(self, indices)

    def prepare(names: dict[str, Any]) -> None:
        create, train, evaluate = names["create_model"], names["train"], names["evaluate"]

        def create_own(*args: Any, **more: Any) -> Any:
            model = create(*args, **more)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1 + 0.05 * rank)
            return model

        def note_train(*args: Any, **more: Any) -> float:
            loss = train(*args, **more)
            seen.own.append((loss, None))
            return loss

        def note_evaluate(*args: Any, **more: Any) -> float:
            accuracy = evaluate(*args, **more)
            seen.own[-1] = (seen.own[-1][0], accuracy)
            return accuracy

        names.update(create_model=create_own, train=note_train, evaluate=note_evaluate)
        if "report" in names:
            report = names["report"]

            def note_report(args: Any, record: dict[str, Any]) -> None:
                seen.reported.append((record["loss"], record["accuracy"]))
                report(args, record)

            names["report"] = note_report

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        with patch.object(ImageDataset, "__getitems__", note_reading):
            yield prepare
        seen.threads = torch.get_num_threads()
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _keras(seen: Seen, rank: int) -> Iterator[Callable[[dict], None]]:
    import keras

    number = _numbers("fashion-mnist")
    fit = keras.Model.fit

    class First(keras.callbacks.Callback):
        """Sees each step before the callbacks of the script do, and the rank's own metrics."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not seen.after:
                seen.update = (self.model.get_weights()[-1] - self.last.bias).tolist()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.own.append((logs["loss"], logs.get("val_accuracy")))

    class Last(keras.callbacks.Callback):
        """Sees what the callbacks of the script have made of it."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.rates.append(float(self.model.optimizer.learning_rate))
            seen.before.append(digest(self.model.get_weights()))
            self.bias = self.model.get_weights()[-1]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.after.append(digest(self.model.get_weights()))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            seen.epochs.append(self.images)

    def note_fit(model: Any, images: Any, labels: Any, *args: Any, **more: Any) -> Any:
        first, last = First(), Last()
        first.last, last.images = last, [number[image.tobytes()] for image in images]
        more["callbacks"] = [first, *more.get("callbacks", ()), last]
        return fit(model, images, labels, *args, **more)

    with patch.object(keras.Model, "fit", note_fit), _threads(seen):
        yield lambda names: _own_weights(names, rank)


@contextmanager
def _tensorflow(seen: Seen, rank: int) -> Iterator[Callable[[dict], None]]:
    number = _numbers("mnist")

    def prepare(names: dict[str, Any]) -> None:
        _own_weights(names, rank)
        step, evaluate = names["train_step"], names["evaluate"]
        open_epoch = [True]
        losses: list[float] = []

        def note_step(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
            seen.rates.append(float(optimizer.learning_rate))
            seen.before.append(digest(model.get_weights()))
            if open_epoch[0]:
                seen.epochs.append([])
                open_epoch[0] = False
            seen.epochs[-1] += [number[image.tobytes()] for image in images.numpy()]
            bias = model.get_weights()[-1]
            loss = step(model, optimizer, images, labels)
            losses.append(float(loss))
            if not seen.after:
                seen.update = (model.get_weights()[-1] - bias).tolist()
            seen.after.append(digest(model.get_weights()))
            return loss

        def note_evaluate(*args: Any, **more: Any) -> float:
            accuracy = evaluate(*args, **more)
            seen.own.append((float(np.mean(losses)), accuracy))
            losses.clear()
            open_epoch[0] = True
            return accuracy

        names.update(train_step=note_step, evaluate=note_evaluate)

    with _threads(seen):
        yield prepare


@contextmanager
def _tensorflow1(seen: Seen, rank: int) -> Iterator[Callable[[dict], None]]:
    import tensorflow.compat.v1 as tf

    number = _numbers("mnist")
    start, set_seed = tf.train.MonitoredTrainingSession, tf.set_random_seed

    class Note(tf.train.SessionRunHook):
        """Sees each training step: its images, and the weights before and after it."""

        def before_run(self, context: Any) -> None:
            seen.before.append(self._weights(context))
            feed = context.original_args.feed_dict
            images = next(array for array in feed.values() if np.ndim(array) == 3)
            seen.epochs[-1] += [number[image.tobytes()] for image in images]

        def after_run(self, context: Any, values: Any) -> None:
            seen.after.append(self._weights(context))

        def _weights(self, context: Any) -> str:
            return digest(context.session.run(tf.trainable_variables()))

    def note_start(*args: Any, **more: Any) -> Any:
        seen.epochs.append([])
        seen.threads = more["config"].intra_op_parallelism_threads
        more["hooks"] = [*more.get("hooks", ()), Note()]
        return start(*args, **more)

    with (
        patch.object(tf.train, "MonitoredTrainingSession", note_start),
        patch.object(tf, "set_random_seed", lambda seed: set_seed(seed + rank)),
        patch.object(tf.logging, "set_verbosity", lambda level: None),  # the cell stays readable
    ):
        yield lambda names: None


def _threads(seen: Seen) -> Any:
    """Notes the threads that TensorFlow is asked for; it takes them only once in a process."""
    import tensorflow as tf

    threading = tf.config.threading
    name = "set_intra_op_parallelism_threads"
    return patch.object(threading, name, lambda threads: setattr(seen, "threads", threads))


def _own_weights(names: dict[str, Any], rank: int) -> None:
    """Let the model begin differently on each rank."""
    create = names["create_model"]

    def create_own(*args: Any, **more: Any) -> Any:
        model = create(*args, **more)
        model.set_weights([array * (1 + 0.05 * rank) for array in model.get_weights()])
        return model

    names["create_model"] = create_own
