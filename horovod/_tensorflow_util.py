"""`horovod.tensorflow.util`: the helpers that tests and programs import."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod._common_util import _cache

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"]


def _executing_eagerly() -> bool:
    return tf.executing_eagerly()


def _make_subgraph(function: Callable[..., Any]) -> Any:
    return tf.function(function)


def vars_to_refs(vars: Any) -> Any:
    """Variables as what can be the key of a dictionary; a list gives a tuple."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables again; a tuple gives a list."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()
