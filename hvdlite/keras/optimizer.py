"""DistributedOptimizer for Keras 3, on TensorFlow and PyTorch; for tf_keras see `legacy`.

The wrapped optimizer is of a subclass with the same name as its own, and shares all attributes
with it. So it saves as the plain optimizer, and what it saves loads where hvdlite is missing.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hvdlite.gradients.options import GradientOptions
from hvdlite.gradients.wrapping import plain_class, wrap
from hvdlite.request import AVERAGE, SUM


def backend() -> str:
    """The framework that Keras computes with: "tensorflow" or "torch".

    Raises RuntimeError for another one.
    """
    import keras

    name = keras.backend.backend() if hasattr(keras.backend, "backend") else "tensorflow"
    if name not in ("tensorflow", "torch"):
        raise RuntimeError(
            f"hvdlite serves Keras on TensorFlow and on PyTorch, and this is Keras on {name}: "
            "set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before the first import of keras"
        )
    return name


class TorchSync:
    """Reduces the gradients of Keras on PyTorch."""

    passes = 1

    def __init__(self, options: GradientOptions):
        from hvdlite.torch.gradients import TensorReducer

        self.options, self._reducer = options, TensorReducer(options)

    def __call__(
        self, gradients: Sequence[Any], is_local: Sequence[bool], names: Sequence[str]
    ) -> list[Any]:
        """The reduced gradients. Those that `is_local` marks are not reduced."""
        results = list(gradients)
        if not self.options.active:
            return results
        for i, local in enumerate(is_local):
            if local and results[i] is not None:
                results[i] = results[i] / self.options.local_scale
        given = [i for i, each in enumerate(results) if each is not None and not is_local[i]]
        reduced = self._reducer.reduce_list([results[i] for i in given], [names[i] for i in given])
        for i, each in zip(given, reduced, strict=True):
            results[i] = each
        return results


class DistributedMixin:
    """The methods that stand in front of those of every wrapped optimizer's class."""

    _hvd_sync: Any
    _hvd_local: dict[int, Any]
    _hvd_options: GradientOptions

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._hvd_local[key_of(variable)] = variable

    def _hvd_reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        is_local = [key_of(each) in self._hvd_local for each in variables]
        names = [name_of_variable(each, i) for i, each in enumerate(variables)]
        return self._hvd_sync(gradients, is_local, names)

    @classmethod
    def from_config(cls, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        plain = plain_class(cls, DistributedMixin)
        return distribute(plain.from_config(config, *args, **kwargs), cls._hvd_options)


class Keras3Mixin(DistributedMixin):
    """For Keras 3, whose `apply` clips the gradients once, before it uses them."""

    _hvd_variables: Sequence[Any] = ()
    _hvd_reduced = False  # already, by what scales the loss
    _hvd_factor = 1

    def _backend_apply_gradients(self, grads: list[Any], trainable_variables: list[Any]) -> None:
        with attributes(self, _hvd_variables=trainable_variables):
            super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if not self._hvd_reduced:
            grads = self._hvd_reduce(grads, self._hvd_variables)
        if self._hvd_factor != 1:
            grads = [grad * self._hvd_factor for grad in grads]
        return super()._clip_gradients(grads)


@contextlib.contextmanager
def attributes(item: Any, **values: Any) -> Iterator[None]:
    """Attributes for the time of a block, past Keras's tracking of what is set."""
    before = {name: vars(item)[name] for name in values if name in vars(item)}
    for name, value in values.items():
        object.__setattr__(item, name, value)
    try:
        yield
    finally:
        for name in values:
            object.__delattr__(item, name)
        for name, value in before.items():
            object.__setattr__(item, name, value)


def distribute(optimizer: Any, options: GradientOptions, local_layers: Any = None) -> Any:
    """A Keras optimizer that steps with the gradients of all ranks.

    Raises TypeError for what is no optimizer of Keras, and ValueError for options that make no
    sense here.
    """
    if isinstance(optimizer, DistributedMixin):
        raise ValueError("this optimizer is a DistributedOptimizer already; wrap it once")
    native = hasattr(optimizer, "_backend_apply_gradients")
    if isinstance(optimizer, type) or not (native or hasattr(optimizer, "apply_gradients")):
        raise TypeError(
            "DistributedOptimizer takes an optimizer, such as keras.optimizers.Adam(0.001), not "
            f"{optimizer!r}"
        )
    if options.op not in (AVERAGE, SUM):
        raise ValueError("with Keras, op must be hvd.Average or hvd.Sum")
    if hasattr(optimizer, "inner_optimizer"):  # scales the loss; the inner one takes the step
        holder = "inner_optimizer" if native else "_optimizer"
        inner = distribute(getattr(optimizer, holder), options, local_layers)
        setattr(optimizer, holder, inner)
        return optimizer
    if native:
        wrapped = _wrapped(optimizer, options)
    else:
        from hvdlite.tensorflow.tf_keras import wrapped as of_tf_keras

        wrapped = of_tf_keras(optimizer, options)
    object.__setattr__(wrapped, "_hvd_local", {})
    for layer in local_layers_of(local_layers):
        for variable in layer.trainable_weights:
            wrapped.register_local_var(variable)
    keras = importlib.import_module("keras" if native else "tf_keras")
    _keep_registered_name(keras, type(optimizer), type(wrapped))
    adapt(keras)
    return wrapped


def _wrapped(optimizer: Any, options: GradientOptions) -> Any:
    passes, factor = options.backward_passes_per_step, 1
    if passes != 1:
        if optimizer.built or optimizer.gradient_accumulation_steps:
            raise ValueError(
                f"backward_passes_per_step={passes}: the optimizer must be new and without "
                "gradient_accumulation_steps of its own"
            )
        optimizer.gradient_accumulation_steps = passes
        factor = 1 if options.average_aggregated_gradients else passes  # Keras averages the passes
    wrapped = wrap(optimizer, Keras3Mixin, _hvd_options=options, _hvd_factor=factor)
    options = replace(options, backward_passes_per_step=1)
    if backend() == "torch":
        sync = TorchSync(options)
    else:
        from hvdlite.tensorflow.gradients import GradientSync

        sync = GradientSync(options, keep=False)
    object.__setattr__(wrapped, "_hvd_sync", sync)
    return wrapped


def _keep_registered_name(keras: Any, plain: type, wrapped: type) -> None:
    """Let the wrapped optimizer save under the name that the plain one is registered with."""
    package, _, name = keras.saving.get_registered_name(plain).partition(">")
    if name:
        for each in (wrapped, plain):  # the last one is what the name loads
            keras.saving.register_keras_serializable(package, name)(each)


def key_of(variable: Any) -> int:
    """The same number for a variable of Keras 3 and for that of the framework inside it."""
    inside = getattr(variable, "value", variable)
    return id(variable if callable(inside) else inside)


def name_of_variable(variable: Any, i: int) -> str:
    """How messages name the i-th variable."""
    return getattr(variable, "path", None) or getattr(variable, "name", None) or f"noname.{i}"


def local_layers_of(layers: Any) -> list[Any]:
    """A list of layers from what users pass for one; ValueError for anything else."""
    layers = [] if layers is None else layers
    layers = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("local_layers must be a layer of Keras, or a list of them")
    return layers


# Where Keras decides something by itself that a collective needs decided otherwise: it compiles
# whole steps, also where they can't be with a collective in them, and it judges each rank's
# gradients before they are reduced.

_seen: set[str] = set()


def adapt(keras: Any) -> None:
    """Make `keras` (the package, or tf_keras) know of wrapped optimizers; once is enough."""
    if keras.__name__ in _seen:
        return
    _seen.add(keras.__name__)
    if not _compiles_collectives(keras.__name__):
        _compile_as_is(keras.Model)
    scaling = getattr(keras.optimizers, "LossScaleOptimizer", None)
    if scaling is not None:
        _reduce_before_judging(scaling)


def _compiles_collectives(package: str) -> bool:
    """Whether a step of this Keras can be compiled with a collective in it."""
    if package == "keras" and backend() != "tensorflow":
        return False
    from hvdlite.tensorflow import xla

    return xla.is_available()


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer, or the one whose loss it scales, is a DistributedOptimizer."""
    return isinstance(getattr(optimizer, "inner_optimizer", optimizer), DistributedMixin)


def _compile_as_is(model: type) -> None:
    # Where it is defined: a class with a `compile` of its own would not be compiled on loading.
    owner = next(each for each in model.__mro__ if "compile" in vars(each))
    original = owner.compile

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_distributed(self.optimizer):
            leave_as_is(self)

    owner.compile = compile


def leave_as_is(model: Any) -> None:
    """Make a compiled model run its steps uncompiled where they can't have a collective."""
    native = hasattr(model, "jit_compile")
    if not _compiles_collectives("keras" if native else "tf_keras"):
        setattr(model, "jit_compile" if native else "_jit_compile", False)


def _reduce_before_judging(scaling: type) -> None:
    """All ranks must skip a step together if one of them has a gradient that is not finite."""
    original = scaling.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not isinstance(inner, Keras3Mixin):
            return original(self, grads, trainable_variables)
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        grads = inner._hvd_reduce(list(grads), list(variables))
        with attributes(inner, _hvd_reduced=True):
            return original(self, grads, trainable_variables)

    scaling.apply = apply
