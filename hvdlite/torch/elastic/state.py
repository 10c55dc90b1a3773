"""The state of a training with PyTorch."""

import copy
from typing import Any, BinaryIO, Protocol, runtime_checkable

import cloudpickle
import torch

from hvdlite.basics import rank
from hvdlite.elastic.state import ObjectState
from hvdlite.objects import broadcast_object
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.functions import (
    broadcast_optimizer_state,
    broadcast_parameters,
    load_in_place,
    walk,
)


class StateHandler:
    """How one kind of value is saved, restored and synchronized."""

    def __init__(self, value: Any):
        self.value = value

    def save(self) -> None:
        """Copy the value's state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the copy."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Take over the root's state, which counts as saved."""
        raise NotImplementedError

    def kept(self) -> dict[str, Any]:
        """What has been saved: all attributes but the value itself."""
        return {name: kept for name, kept in vars(self).items() if name != "value"}

    def set_value(self, value: Any) -> None:
        """Handle another value from now on."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """For models."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """For optimizers; schedulers go on holding the same parameter groups."""

    def restore(self) -> None:
        load_in_place(self.value, copy.deepcopy(self._saved))
        self.value.zero_grad()  # gradients of a batch that will come again

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """For samplers, schedulers, and whatever else has a small `state_dict()`."""

    def restore(self) -> None:
        super().restore()
        if isinstance(self.value, torch.amp.GradScaler):
            self.value._per_optimizer_states.clear()  # of a step that was not finished

    def sync(self) -> None:
        state = walk(self.value.state_dict(), torch.Tensor.cpu)  # the root's GPU is not ours
        self.value.load_state_dict(broadcast_object(state))
        self.save()


@runtime_checkable
class _HasState(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (_HasState, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Types and the handlers of their values; the first that fits counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Use other handlers for the states that are made from now on."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """Models, optimizers, schedulers, samplers and plain values, which are its attributes."""

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ):
        values = {"model": model, "optimizer": optimizer, **kwargs}
        self._handlers: dict[str, StateHandler] = {}
        for name, value in values.items():
            kind = next((kind for of, kind in _registry if isinstance(value, of)), None)
            if kind is not None:
                self._handlers[name] = kind(value)
                self._handlers[name].save()
                setattr(self, name, value)
        others = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(broadcast_object, rank, **others)

    def __setattr__(self, name: str, value: Any) -> None:
        handler = vars(self).get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def _kept(self) -> Any:
        return {name: h.kept() for name, h in self._handlers.items()}, super()._kept()

    def _take(self, kept: Any) -> None:
        handlers, objects = kept
        for name, values in handlers.items():
            vars(self._handlers[name]).update(values)
        super()._take(objects)

    def _write_kept(self, file: BinaryIO) -> None:
        torch.save(self._kept(), file, pickle_module=cloudpickle)

    def _read_kept(self, file: BinaryIO) -> None:
        self._take(torch.load(file, map_location="cpu", weights_only=False))

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
