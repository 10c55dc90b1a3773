"""The TensorFlow binding: `import hvdlite.tensorflow as hvd`, also as `horovod.tensorflow`."""

# ruff: noqa: F401, F403, I001
# fmt: off
from hvdlite import *
from hvdlite.calls import barrier
from hvdlite.exceptions import HorovodInternalError
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.functions import (
    BroadcastGlobalVariablesHook, allgather_object, broadcast_, broadcast_global_variables,
    broadcast_object, broadcast_object_fn, broadcast_variables,
)
from hvdlite.tensorflow.ops import (
    Adasum, Average, Max, Min, Product, Sum, allgather, allreduce, alltoall, broadcast,
    grouped_allgather, grouped_allreduce, grouped_reducescatter, join, local_rank_op,
    local_size_op, process_set_included_op, rank_op, reducescatter, size_op,
)
from hvdlite.tensorflow.optimizer import DistributedOptimizer
from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization
from hvdlite.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from hvdlite.tensorflow import elastic
# fmt: on

# Everything above is offered, under Horovod's names.
__all__ = [name for name in globals() if not name.startswith("_")]
