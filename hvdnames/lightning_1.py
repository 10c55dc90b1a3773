"""Programs for Lightning 1 on Lightning 2: the Trainer's old arguments, and hooks that are gone.

A callback of ours keeps what the steps return and calls the old hooks where the new ones come.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from hvdnames import used

_HOOKS = {"training_epoch_end": "train", "validation_epoch_end": "val", "test_epoch_end": "test"}
_STARTS = ("on_init_start", "on_init_end")  # callbacks had them, and `on_epoch_end`


def _arguments(kwargs: dict[str, Any]) -> None:
    """Put Lightning 2's arguments of a Trainer for those of Lightning 1."""
    for name in ("accelerator", "distributed_backend"):
        if kwargs.get(name) == "horovod":
            used(f"Trainer({name}='horovod')")
            del kwargs[name]
            kwargs["strategy"] = "horovod"
    if "gpus" in kwargs:
        used("Trainer(gpus=)")
        gpus = kwargs.pop("gpus")
        if gpus is not None:
            kwargs["accelerator"] = "gpu" if gpus else "cpu"
        if gpus:
            kwargs["devices"] = gpus


def _trainer(module: ModuleType) -> None:
    kind = module.Trainer
    make, package = kind.__init__, module.__name__.removesuffix(".trainer.trainer")

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _arguments(kwargs)
        resume_from = kwargs.pop("resume_from_checkpoint", None)
        make(self, *args, **kwargs)
        if resume_from is not None:
            used("Trainer(resume_from_checkpoint=)")
            self._hvd_resume_from = resume_from
        for hook in _STARTS:
            for callback in self.callbacks:
                if hasattr(callback, hook):
                    used(f"Callback.{hook}()")
                    getattr(callback, hook)(self)

    kind.__init__ = __init__
    for name in ("fit", "validate", "test"):
        setattr(kind, name, _with_old_hooks(getattr(kind, name), package))


def _with_old_hooks(run: Any, package: str) -> Any:
    @functools.wraps(run)
    def method(self: Any, model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if run.__name__ == "fit" and hasattr(self, "_hvd_resume_from"):
            kwargs.setdefault("ckpt_path", self._hvd_resume_from)
        with _hooks(self, model or self.lightning_module, package):
            return run(self, model, *args, **kwargs)

    return method


@contextlib.contextmanager
def _hooks(trainer: Any, model: Any, package: str) -> Iterator[None]:
    """The old hooks of the model and of its callbacks, for as long as the Trainer runs."""
    old = [name for name in _HOOKS if callable(getattr(type(model), name, None))]
    listeners = [each for each in (*trainer.callbacks, model) if hasattr(each, "on_epoch_end")]
    if not (old or listeners):
        yield
        return
    for name in old:
        used(f"LightningModule.{name}()")
        model.__dict__[name] = None  # or Lightning refuses the model
    if listeners:
        used("on_epoch_end()")
    ours = _callback(package)(old, listeners)
    trainer.callbacks.append(ours)
    try:
        yield
    finally:
        trainer.callbacks.remove(ours)
        for name in old:
            del model.__dict__[name]


@functools.cache
def _callback(package: str) -> type:
    base = importlib.import_module(f"{package}.callbacks").Callback

    class OldHooks(base):
        """Calls the hooks of Lightning 1."""

        def __init__(self, hooks: list[str], listeners: list[Any]):
            self._hooks = {_HOOKS[name]: name for name in hooks}
            self._listeners = listeners
            self._outputs: dict[str, dict[int, list[Any]]] = {}

        def _keep(self, stage: str, outputs: Any, loader: int = 0) -> None:
            if stage in self._hooks:
                self._outputs.setdefault(stage, {}).setdefault(loader, []).append(outputs)

        def _end(self, stage: str, trainer: Any, model: Any) -> None:
            by_loader = list(self._outputs.pop(stage, {}).values())
            if stage in self._hooks:
                hook = getattr(type(model), self._hooks[stage])
                hook(model, by_loader[0] if len(by_loader) == 1 else by_loader)
            if stage != "test":
                for each in self._listeners:
                    each.on_epoch_end(*(() if each is model else (trainer, model)))

        def on_train_batch_end(self, _: Any, model: Any, outputs: Any, *args: Any) -> None:
            self._keep("train", outputs)

        def on_validation_batch_end(
            self, _: Any, model: Any, outputs: Any, batch: Any, i: int, loader: int = 0
        ) -> None:
            self._keep("val", outputs, loader)

        def on_test_batch_end(
            self, _: Any, model: Any, outputs: Any, batch: Any, i: int, loader: int = 0
        ) -> None:
            self._keep("test", outputs, loader)

        def on_train_epoch_end(self, trainer: Any, model: Any) -> None:
            self._end("train", trainer, model)

        def on_validation_epoch_end(self, trainer: Any, model: Any) -> None:
            self._end("val", trainer, model)

        def on_test_epoch_end(self, trainer: Any, model: Any) -> None:
            self._end("test", trainer, model)

    return OldHooks


_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
PATCHES = {f"{name}.trainer.trainer": _trainer for name in _PACKAGES}
