"""The PyTorch binding: `import hvdlite.torch as hvd`, or `import horovod.torch as hvd`."""

# ruff: noqa: E402, F401, F403, I001
# fmt: off
import hvdnames as _hvdnames

_hvdnames.needs("torch", by=__name__)

from hvdlite import *
from hvdlite import __all__ as _basics
from hvdlite.calls import barrier
from hvdlite.exceptions import HorovodInternalError
from hvdlite.objects import allgather_object, broadcast_object
from hvdlite.request import (
    ADASUM as Adasum, AVERAGE as Average, MAX as Max, MIN as Min, PRODUCT as Product, SUM as Sum,
)
from hvdlite.torch.allreduce_ops import (
    allreduce, allreduce_, allreduce_async, allreduce_async_, grouped_allreduce,
    grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_,
)
from hvdlite.torch.compression import Compression
from hvdlite.torch.cuda_graph import cuda_graph
from hvdlite.torch.functions import broadcast_optimizer_state, broadcast_parameters
from hvdlite.torch.handles import poll, synchronize
from hvdlite.torch.opaque import opaque as _opaque
from hvdlite.torch.ops import (
    allgather, allgather_async, alltoall, alltoall_async, broadcast, broadcast_, broadcast_async,
    broadcast_async_, grouped_allgather, grouped_allgather_async, grouped_reducescatter,
    grouped_reducescatter_async, join, reducescatter, reducescatter_async,
)
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.sparse import sparse_allreduce_async
from hvdlite.torch.sync_batch_norm import SyncBatchNorm
from hvdlite.torch import elastic

_calls = [
    "DistributedOptimizer", "add_process_set", "allgather", "allgather_async", "allgather_object",
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall",
    "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "init", "join", "poll", "reducescatter", "reducescatter_async",
    "remove_process_set", "shutdown", "sparse_allreduce_async", "synchronize",
]
__all__ = [
    *_basics, *_calls, "Adasum", "Average", "Compression", "HorovodInternalError", "Max", "Min",
    "Product", "Sum", "SyncBatchNorm", "cuda_graph", "elastic",
]
# fmt: on

for _name in _calls:
    _opaque(globals()[_name])

_hvdnames.supply_beside_torch()
