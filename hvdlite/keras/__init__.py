"""The Keras binding: `import hvdlite.keras as hvd`, or `import horovod.keras as hvd`."""

# ruff: noqa: E402, F403, I001
# fmt: off
import functools as _functools

import hvdnames as _hvdnames

_hvdnames.needs("keras", by=__name__)

import keras as _keras

from hvdlite import *
from hvdlite import __all__ as _basics
from hvdlite.exceptions import HorovodInternalError
from hvdlite.keras.functions import (
    DistributedOptimizer, PartialDistributedOptimizer, allgather, allreduce, broadcast,
    broadcast_global_variables, reducescatter,
)
from hvdlite.objects import allgather_object, broadcast_object
from hvdlite.request import ADASUM as Adasum, AVERAGE as Average, SUM as Sum
from hvdlite.keras import callbacks
from hvdlite.keras.models import load as _load
from hvdlite.keras.optimizer import backend as _backend

if _backend() == "torch":
    from hvdlite.torch.compression import Compression
else:
    from hvdlite.tensorflow.compression import Compression
from hvdlite.keras import elastic
# fmt: on

_hvdnames.supply()

load_model = _functools.partial(_load, _keras)

# fmt: off
__all__ = [
    *_basics,
    "Adasum", "Average", "Compression", "DistributedOptimizer",
    "HorovodInternalError", "PartialDistributedOptimizer", "Sum", "allgather",
    "allgather_object", "allreduce", "broadcast", "broadcast_global_variables",
    "broadcast_object", "callbacks", "elastic", "load_model", "reducescatter",
]
# fmt: on
