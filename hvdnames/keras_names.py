"""What Keras 2 had and Keras 3 has not: arguments and methods."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from hvdnames import keras_layers, saving, used
from hvdnames.imports import in_place_of

_OF_GENERATORS = ("max_queue_size", "workers", "use_multiprocessing")
# Arguments that chose how the same was computed, or what was written besides.
WITHOUT_MEANING = {
    "apply_gradients": ("name", "experimental_aggregate_gradients", "skip_gradients_aggregation"),
    "BatchNormalization": ("fused",),
    "compile": ("experimental_run_tf_function", "sample_weight_mode"),
    "evaluate": _OF_GENERATORS,
    "fit": _OF_GENERATORS,
    "ModelCheckpoint": ("options", "load_weights_on_restart"),
    "predict": _OF_GENERATORS,
    "save_weights": ("save_format",),
    "TensorBoard": ("batch_size", "write_grads"),
}


def passed_on(owner: type, name: str, change: Callable[[Any, dict[str, Any]], None]) -> None:
    """Let `change` take old arguments out of a method's keywords, and put new ones in."""
    original = vars(owner)[name]

    @in_place_of(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        change(self, kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, method)


def drop(kwargs: dict[str, Any], method: str) -> None:
    """Leave out arguments that have lost their meaning."""
    for name in WITHOUT_MEANING[method]:
        if name in kwargs:
            del kwargs[name]
            used(f"{method}({name}=)")


class Variables(list):
    """An optimizer's variables: the list of Keras 3, which can be called as in Keras 2."""

    def __call__(self) -> list[Any]:
        """The list itself."""
        used("optimizer.variables()")
        return list(self)

    def tree_flatten(self) -> tuple[list[Any], None]:
        """To keras.tree it is a list."""
        return list(self), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> list[Any]:
        """A plain list."""
        return list(children)

    torchtree_flatten = tree_flatten

    @staticmethod
    def torchtree_unflatten(children: Any, _: None) -> list[Any]:
        """A plain list, by the name that keras.tree has for it on PyTorch."""
        return list(children)


def _callable_variables(owner: type) -> None:
    original = vars(owner)["variables"]
    owner.variables = property(lambda self: Variables(original.fget(self)), doc=original.__doc__)


def _patch_optimizers(keras: ModuleType) -> None:
    base = importlib.import_module("keras.src.optimizers.base_optimizer").BaseOptimizer

    @in_place_of(original := base.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        decay = kwargs.pop("decay", None)
        if "lr" in kwargs:
            used("lr=")
            kwargs["learning_rate"], args = kwargs.pop("lr"), args[1:]
        original(self, *args, **kwargs)
        if decay:
            used("decay=")
            _decay(base)
            object.__setattr__(self, "_hvd_decay", float(decay))

    base.__init__ = __init__

    def get(self: Any) -> Any:
        used("optimizer.lr")
        return self.learning_rate

    def set(self: Any, value: Any) -> None:
        used("optimizer.lr")
        self.learning_rate = value

    def weights(self: Any) -> Any:
        used("optimizer.weights")
        return self.variables

    base.lr = property(get, set, doc="The learning rate, by its name in Keras 2.")
    base.weights = property(weights, doc="The variables, by their name in Keras 2.")
    base.get_weights = _get_weights
    passed_on(base, "apply_gradients", lambda _, kwargs: drop(kwargs, "apply_gradients"))
    _callable_variables(base)
    importlib.import_module("keras.src.tree.tree_api").register_tree_node_class(Variables)
    _patch_loss_scaling(keras.optimizers.LossScaleOptimizer)


def _get_weights(self: Any) -> list[Any]:
    """The values of the optimizer's variables."""
    used("optimizer.get_weights()")
    return [each.numpy() for each in self.variables]


def _decay(base: type) -> None:
    """Let steps shrink by 1 / (1 + decay * iterations), as `decay=` did. The learning rate itself
    stays as it is, for callbacks to change. From the first optimizer on that has a decay."""
    if hasattr(base, "_hvd_decay"):
        return
    base._hvd_decay, base._hvd_in_step = 0.0, False
    rate, step, config = (
        base._get_current_learning_rate, base._backend_apply_gradients, base.get_config
    )  # fmt: skip

    @in_place_of(rate)
    def _get_current_learning_rate(self: Any) -> Any:
        if not (self._hvd_decay and self._hvd_in_step):
            return rate(self)
        ops = importlib.import_module("keras.ops")
        return rate(self) / (1.0 + self._hvd_decay * ops.cast(self.iterations, "float32"))

    @in_place_of(step)
    def _backend_apply_gradients(self: Any, *args: Any) -> None:
        object.__setattr__(self, "_hvd_in_step", True)
        try:
            step(self, *args)
        finally:
            object.__setattr__(self, "_hvd_in_step", False)

    @in_place_of(config)
    def get_config(self: Any) -> dict[str, Any]:
        return config(self) | ({"decay": self._hvd_decay} if self._hvd_decay else {})

    base._get_current_learning_rate, base.get_config = _get_current_learning_rate, get_config
    base._backend_apply_gradients = _backend_apply_gradients


def _patch_loss_scaling(scaling: type) -> None:
    _callable_variables(scaling)

    def change(self: Any, kwargs: dict[str, Any]) -> None:
        if kwargs.pop("dynamic", True) is False:
            used("LossScaleOptimizer(dynamic=False)")
            kwargs["dynamic_growth_steps"] = 2**31 - 1  # never; an overflow still halves it

    passed_on(scaling, "__init__", change)

    def get_scaled_loss(self: Any, loss: Any) -> Any:
        """The loss, scaled; in Keras 3, `scale_loss`."""
        used("get_scaled_loss()")
        if callable(loss):
            return lambda: self.scale_loss(loss())
        return self.scale_loss(loss)

    def get_unscaled_gradients(self: Any, grads: Any) -> list[Any]:
        """The gradients of the loss itself, which programs clip; `apply` takes them from now."""
        used("get_unscaled_gradients()")
        object.__setattr__(self, "_hvd_unscaled", True)
        scale = self.dynamic_scale if self.built else self.initial_scale
        return [each if each is None else _scaled(each, 1.0 / scale) for each in grads]

    apply = scaling.apply

    @in_place_of(apply)
    def scaling_apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if getattr(self, "_hvd_unscaled", False):
            object.__setattr__(self, "_hvd_unscaled", False)
            if not self.built:  # `apply` divides by a variable, which there is only then
                self.build(trainable_variables)
                self.built = True
            grads = [each if each is None else _scaled(each, self.dynamic_scale) for each in grads]
        return apply(self, grads, trainable_variables)

    scaling.get_scaled_loss, scaling.get_unscaled_gradients = (
        get_scaled_loss,
        get_unscaled_gradients,
    )
    scaling.apply = scaling_apply


def _scaled(gradient: Any, factor: Any) -> Any:
    if hasattr(gradient, "indices"):  # IndexedSlices
        return type(gradient)(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _patch_models(keras: ModuleType) -> None:
    model = keras.Model

    def change(self: Any, kwargs: dict[str, Any]) -> None:
        drop(kwargs, "compile")
        if "experimental_steps_per_execution" in kwargs:
            used("compile(experimental_steps_per_execution=)")
            kwargs["steps_per_execution"] = kwargs.pop("experimental_steps_per_execution")

    owners = [each for each in model.__mro__ if "compile" in vars(each)]
    passed_on(owners[0], "compile", change)
    for name in ("fit", "evaluate", "predict"):
        owner = next(each for each in model.__mro__ if name in vars(each))
        passed_on(owner, name, lambda self, kwargs, name=name: drop(kwargs, name))
        if not hasattr(model, f"{name}_generator"):
            setattr(model, f"{name}_generator", _of_generator(name))
    base = keras.metrics.Metric
    if not hasattr(base, "reset_states"):
        base.reset_states = _reset_states


def _reset_states(self: Any) -> None:
    """`reset_state`, by its name in Keras 2."""
    used("metric.reset_states()")
    self.reset_state()


def _of_generator(name: str) -> Callable[..., Any]:
    """`fit_generator` and its like, whose generators begin anew when they are at their end."""
    old = ["generator", *{"fit": ["steps_per_epoch", "epochs", "verbose", "callbacks"]}.get(
        name, ["steps", "callbacks"])]  # fmt: skip

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        used(f"{name}_generator()")
        kwargs |= dict(zip(old, args, strict=False))
        data = kwargs.pop("generator")
        for each in (*_OF_GENERATORS, "pickle_safe"):
            kwargs.pop(each, None)
        if name != "fit":
            kwargs.setdefault("verbose", 0)  # as it was
        steps = kwargs.get("steps_per_epoch" if name == "fit" else "steps")
        if steps is not None:
            kwargs["steps_per_epoch" if name == "fit" else "steps"] = int(steps)
        if kwargs.get("validation_steps") is not None:
            kwargs["validation_steps"] = steps_of = int(kwargs["validation_steps"])
            kwargs["validation_data"] = _endless(kwargs.get("validation_data"), steps_of)
        return getattr(self, name)(_endless(data, steps), **kwargs)

    return method


def _endless(data: Any, steps: Any) -> Any:
    """A Sequence that has fewer batches than steps, over and over."""
    if steps is None or not (hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")):
        return data
    if len(data) >= steps:
        return data

    def batches() -> Iterator[Any]:
        while True:
            yield from (data[i] for i in range(len(data)))
            data.on_epoch_end()

    return batches()


def _patch_checkpoints(keras: ModuleType) -> None:
    kind = keras.callbacks.ModelCheckpoint
    original, on_epoch_end = kind.__init__, kind.on_epoch_end
    signature = inspect.signature(original)

    @in_place_of(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        period = kwargs.pop("period", 1)
        drop(kwargs, "ModelCheckpoint")
        given = signature.bind(self, *args, **kwargs).arguments
        path, weights = str(given["filepath"]), given.get("save_weights_only", False)
        endings = (".weights.h5",) if weights else (".keras", ".h5")
        if not path.endswith(endings):
            used(f"ModelCheckpoint({path!r})")
            given["filepath"] = path + endings[0]
        original(**given)
        self.filepath = path
        if period != 1:
            used("ModelCheckpoint(period=)")
            self._hvd_period = self._hvd_epochs_left = int(period)

    @in_place_of(on_epoch_end)
    def of_each_period(self: Any, epoch: int, logs: Any = None) -> None:
        if hasattr(self, "_hvd_period"):
            self._hvd_epochs_left -= 1
            if self._hvd_epochs_left > 0:
                return
            self._hvd_epochs_left = self._hvd_period
        on_epoch_end(self, epoch, logs)

    kind.__init__, kind.on_epoch_end = __init__, of_each_period


def _patch_variables(keras: ModuleType) -> None:
    variable = keras.Variable
    if not hasattr(variable, "ref"):
        variable.ref, variable.read_value = _ref, _read_value


def _ref(self: Any) -> Any:
    """What a dictionary takes as a key."""
    used("variable.ref()")
    return self.value.ref()


def _read_value(self: Any) -> Any:
    """The value as a tensor, which stays as it is when the variable changes."""
    used("variable.read_value()")
    return importlib.import_module("keras").ops.copy(self.value)


def _keras(keras: ModuleType) -> None:
    _patch_optimizers(keras)
    _patch_models(keras)
    _patch_checkpoints(keras)
    _patch_variables(keras)
    keras_layers.patch(keras, passed_on, drop)
    saving.patch(keras, drop)


PATCHES = {"keras": _keras}
