"""The binding to tf.keras: Keras 3, or with TF_USE_LEGACY_KERAS=1 the older tf_keras."""

# ruff: noqa: F403, I001
# fmt: off
import functools as _functools

import tensorflow as _tf

from hvdlite import *
from hvdlite import __all__ as _basics
from hvdlite.exceptions import HorovodInternalError
from hvdlite.keras.functions import (
    DistributedOptimizer, PartialDistributedOptimizer, allgather, allreduce, broadcast,
    broadcast_global_variables, reducescatter,
)
from hvdlite.objects import allgather_object, broadcast_object
from hvdlite.request import ADASUM as Adasum, AVERAGE as Average, SUM as Sum
from hvdlite.keras.models import load as _load
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.keras import callbacks, elastic
# fmt: on

load_model = _functools.partial(_load, _tf.keras)

# fmt: off
__all__ = [
    *_basics,
    "Adasum", "Average", "Compression", "DistributedOptimizer",
    "HorovodInternalError", "PartialDistributedOptimizer", "Sum", "allgather",
    "allgather_object", "allreduce", "broadcast", "broadcast_global_variables",
    "broadcast_object", "callbacks", "elastic", "load_model", "reducescatter",
]
# fmt: on
