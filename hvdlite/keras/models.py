"""Saved models, with their optimizers wrapped again."""

from typing import Any

from hvdlite.compression import NoneCompressor
from hvdlite.gradients.options import GradientOptions
from hvdlite.keras.optimizer import DistributedMixin, distribute, leave_as_is


def load(
    keras: Any,
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = NoneCompressor,
    legacy_opts: bool = False,
) -> Any:
    """A saved model of the package `keras`, with its optimizer wrapped and its state kept.

    `custom_optimizers` are classes of one's own, `custom_objects` whatever else the file names.
    `legacy_opts` is accepted for compatibility. Raises what `keras.models.load_model` raises.
    """
    known = {each.__name__: each for each in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = model.optimizer
    if optimizer is not None and not isinstance(optimizer, DistributedMixin):
        model.optimizer = distribute(optimizer, GradientOptions(compression=compression))
        leave_as_is(model)
    return model
