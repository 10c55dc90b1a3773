"""The optimizers of tf_keras, and so of programs for Keras 2."""

from typing import Any

import tensorflow as tf

from hvdlite.gradients.options import GradientOptions
from hvdlite.gradients.wrapping import wrap
from hvdlite.keras.optimizer import DistributedMixin
from hvdlite.tensorflow.gradients import GradientSync


class TfKerasMixin(DistributedMixin):
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
        if self._hvd_sync.passes == 1:
            return apply(grads_and_vars, name=name, **kwargs)
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

        return tf.cond(self._hvd_sync.ready, step, skip)


def wrapped(optimizer: Any, options: GradientOptions) -> Any:
    """An optimizer of tf_keras, old or new, with what reduces its gradients."""
    distributed = wrap(optimizer, TfKerasMixin, _hvd_options=options)
    object.__setattr__(distributed, "_hvd_sync", GradientSync(options, keep=False))
    return distributed
