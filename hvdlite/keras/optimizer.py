"""DistributedOptimizer for Keras: Keras 3 on TensorFlow and PyTorch, and tf_keras, old and new.

The wrapped optimizer is of a subclass with the same name as its own, and shares all attributes
with it. So it saves as the plain optimizer, and what it saves loads where hvdlite is missing.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from hvdlite.calls import check_gradients
from hvdlite.compression import NoneCompressor
from hvdlite.process_sets import ProcessSet, global_process_set
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


class _TorchReducer:
    """Reduces the gradients of Keras on PyTorch."""

    passes = 1

    def __init__(
        self,
        op: int,
        compression: Any = NoneCompressor,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ):
        factor = gradient_predivide_factor
        check_gradients(compression, process_set, op, factor, self.passes)
        self.active = process_set.included() and process_set.size() > 1
        self._options = {"op": op, "process_set": process_set, "compression": compression}
        self._options |= {"prescale_factor": 1 / factor, "postscale_factor": factor}
        self._local_scale = process_set.size() if scale_local_gradients else 1

    def __call__(self, gradients: Sequence[Any], is_local: Sequence[bool] = ()) -> list[Any]:
        from hvdlite.torch import grouped_allreduce

        if not self.active:
            return list(gradients)
        local = {i for i, each in enumerate(is_local) if each}
        given = [i for i, each in enumerate(gradients) if each is not None and i not in local]
        results = list(gradients)
        for i in local:
            results[i] = results[i] / self._local_scale
        reduced = grouped_allreduce([results[i] for i in given], **self._options)
        for i, each in zip(given, reduced, strict=True):
            results[i] = each
        return results


class Distributed:
    """What stands in front of the class of every wrapped optimizer."""

    _hvd_reducer: Any
    _hvd_local: set[int]
    _hvd_options: dict[str, Any]

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._hvd_local.add(key_of(variable))

    def _hvd_reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._hvd_reducer(gradients, [key_of(each) in self._hvd_local for each in variables])

    @classmethod
    def from_config(cls, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        plain = cls.__mro__[cls.__mro__.index(Distributed) + 1]
        return distribute(plain.from_config(config, *args, **kwargs), **cls._hvd_options)


class DistributedKeras3(Distributed):
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


class DistributedTfKeras(Distributed):
    """For tf_keras, whose optimizers and loss scaling aggregate gradients before they look."""

    def aggregate_gradients(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """The gradients, reduced over the ranks, each with its variable."""
        pairs = list(grads_and_vars)
        gradients, variables = zip(*pairs, strict=True) if pairs else ((), ())
        return list(zip(self._hvd_reduce(gradients, variables), variables, strict=True))

    _aggregate_gradients = aggregate_gradients  # the older optimizers' name for it

    def apply_gradients(self, grads_and_vars: Any, name: str | None = None, **kwargs: Any) -> Any:
        """Update the variables with the gradients of all ranks, on the last of some passes."""
        apply = super().apply_gradients
        if self._hvd_reducer.passes == 1:
            return apply(grads_and_vars, name=name, **kwargs)
        import tensorflow as tf

        pairs = list(grads_and_vars)
        aggregate = kwargs.pop("experimental_aggregate_gradients", True)
        if aggregate and not kwargs.pop("skip_gradients_aggregation", False):
            pairs = self.aggregate_gradients(pairs)
        with tf.init_scope():  # no variables can be made inside a branch
            prepare = getattr(self, "build", None) or self._create_all_weights
            prepare([variable for _, variable in pairs])

        def step() -> Any:
            return tf.group(apply(pairs, name=name, experimental_aggregate_gradients=False))

        def skip() -> Any:
            return tf.group(self.iterations.assign_add(1))

        return tf.cond(self._hvd_reducer.ready, step, skip)


@contextlib.contextmanager
def attributes(item: Any, **values: Any) -> Iterator[None]:
    """Attributes for the time of a block, past Keras's tracking of what is set."""
    for name, value in values.items():
        object.__setattr__(item, name, value)
    try:
        yield
    finally:
        for name in values:
            object.__delattr__(item, name)


def distribute(optimizer: Any, local_layers: Any = None, **options: Any) -> Any:
    """A Keras optimizer that steps with the gradients of all ranks.

    `options` are those of `DistributedOptimizer`. Raises TypeError for what is no optimizer of
    Keras, and ValueError for arguments that make no sense.
    """
    base = type(optimizer)
    if isinstance(optimizer, Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already; wrap it once")
    native = hasattr(optimizer, "_backend_apply_gradients")
    if isinstance(optimizer, type) or not (native or hasattr(optimizer, "apply_gradients")):
        raise TypeError(
            "DistributedOptimizer takes an optimizer, such as keras.optimizers.Adam(0.001), not "
            f"{optimizer!r}"
        )
    if hasattr(optimizer, "inner_optimizer"):  # scales the loss; the inner one takes the step
        holder = "inner_optimizer" if native else "_optimizer"
        inner = distribute(getattr(optimizer, holder), local_layers, **options)
        setattr(optimizer, holder, inner)
        return optimizer
    reducer, factor = _reducer_for(optimizer, native, **options)
    front = DistributedKeras3 if native else DistributedTfKeras
    details = {"_hvd_options": options, "_hvd_factor": factor}
    details |= {"__module__": base.__module__, "__doc__": base.__doc__}
    wrapped = object.__new__(type(base)(base.__name__, (front, base), details))
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    object.__setattr__(wrapped, "_hvd_reducer", reducer)
    object.__setattr__(wrapped, "_hvd_local", set())
    for layer in local_layers_of(local_layers):
        for variable in layer.trainable_weights:
            wrapped.register_local_var(variable)
    see_to(importlib.import_module("keras" if native else "tf_keras"))
    return wrapped


def key_of(variable: Any) -> int:
    """The same number for a variable of Keras 3 and for that of the framework inside it."""
    inside = getattr(variable, "value", variable)
    return id(variable if callable(inside) else inside)


def local_layers_of(layers: Any) -> list[Any]:
    """A list of layers from what users pass for one; ValueError for anything else."""
    layers = [] if layers is None else layers
    layers = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("local_layers must be a layer of Keras, or a list of them")
    return layers


def _reducer_for(
    optimizer: Any,
    native: bool,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    op: int = AVERAGE,
    **options: Any,
) -> tuple[Any, int]:
    """What reduces the gradients, and by what number to multiply them afterwards."""
    if op not in (AVERAGE, SUM):
        raise ValueError("with Keras, op must be hvd.Average or hvd.Sum")
    passes, average, factor = backward_passes_per_step, average_aggregated_gradients, 1
    if not native:
        options |= {"backward_passes_per_step": passes, "average_aggregated_gradients": average}
    elif passes != 1:
        if optimizer.built or optimizer.gradient_accumulation_steps or passes < 1:
            raise ValueError(
                f"backward_passes_per_step={passes!r}: it must be 1 or more, and the optimizer "
                "must be new and without gradient_accumulation_steps of its own"
            )
        optimizer.gradient_accumulation_steps = passes
        factor = 1 if average else passes  # Keras averages the passes
    if native and backend() == "torch":
        return _TorchReducer(op=op, **options), factor
    from hvdlite.tensorflow.gradients import GradientReducer

    return GradientReducer(op=op, keep=False, **options), factor


# Where Keras decides something by itself that a collective needs decided otherwise: it compiles
# steps with XLA on GPUs, which can't contain a Python function, and it judges each rank's gradients
# before they are reduced.

_seen: set[str] = set()


def see_to(keras: Any) -> None:
    """Make `keras` (the package, or tf_keras) know of wrapped optimizers; once is enough."""
    if keras.__name__ in _seen:
        return
    _seen.add(keras.__name__)
    _compile_without_xla(keras.Model)
    scaling = getattr(keras.optimizers, "LossScaleOptimizer", None)
    if scaling is not None:
        _reduce_before_judging(scaling)


def _compile_without_xla(model: type) -> None:
    # Where it is defined: a class with a `compile` of its own would not be compiled on loading.
    owner = next(each for each in model.__mro__ if "compile" in vars(each))
    original = owner.compile

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        optimizer = self.optimizer
        if isinstance(getattr(optimizer, "inner_optimizer", optimizer), Distributed):
            without_xla(self)

    owner.compile = compile


def without_xla(model: Any) -> None:
    """Make a compiled model run its steps without XLA."""
    setattr(model, "_jit_compile" if hasattr(model, "_jit_compile") else "jit_compile", False)


def _reduce_before_judging(scaling: type) -> None:
    """All ranks must skip a step together if one of them has a gradient that is not finite."""
    original = scaling.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not isinstance(inner, DistributedKeras3):
            return original(self, grads, trainable_variables)
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        grads = inner._hvd_reduce(list(grads), list(variables))
        with attributes(inner, _hvd_reduced=True):
            return original(self, grads, trainable_variables)

    scaling.apply = apply
