"""The TensorFlow binding: `import hvdlite.tensorflow as hvd`, also as `horovod.tensorflow`."""

# ruff: noqa: E402, F403, I001
# fmt: off
import hvdnames as _hvdnames

_hvdnames.needs("tensorflow", by=__name__)

import tensorflow as _tf

from hvdlite import *
from hvdlite import __all__ as _basics
from hvdlite.calls import barrier
from hvdlite.exceptions import HorovodInternalError
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.functions import (
    allgather_object, broadcast_, broadcast_object, broadcast_object_fn, broadcast_variables,
)
from hvdlite.tensorflow.ops import (
    Adasum, Average, Max, Min, Product, Sum, allgather, allreduce, alltoall, broadcast,
    grouped_allgather, grouped_allreduce, grouped_reducescatter, join, local_rank_op,
    local_size_op, process_set_included_op, rank_op, reducescatter, size_op,
)
from hvdlite.tensorflow.optimizer import DistributedOptimizer
from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization
from hvdlite.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from hvdlite.tensorflow.v1 import BroadcastGlobalVariablesHook, broadcast_global_variables
from hvdlite.tensorflow import elastic

__all__ = [
    *_basics, "Adasum", "Average", "BroadcastGlobalVariablesHook", "Compression",
    "DistributedGradientTape", "DistributedOptimizer", "HorovodInternalError", "Max", "Min",
    "PartialDistributedGradientTape", "Product", "Sum", "SyncBatchNormalization", "allgather",
    "allgather_object", "allreduce", "alltoall", "barrier", "broadcast", "broadcast_",
    "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
    "broadcast_variables", "elastic", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "join", "local_rank_op", "local_size_op",
    "process_set_included_op", "rank_op", "reducescatter", "size_op",
]
# fmt: on

# What a tf.function calls here is called as it is. AutoGraph would rewrite all of it, down to
# Python's own modules, which takes seconds.
for _name in ("allgather", "allgather_object", "allreduce", "alltoall", "barrier", "broadcast",
              "broadcast_", "broadcast_object", "broadcast_variables", "grouped_allgather",
              "grouped_allreduce", "grouped_reducescatter", "join", "local_rank_op",
              "local_size_op", "process_set_included_op", "rank_op", "reducescatter",
              "size_op"):  # fmt: skip
    globals()[_name] = _tf.autograph.experimental.do_not_convert(globals()[_name])

_hvdnames.supply()
