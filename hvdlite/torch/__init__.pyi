# Written by tools/stubs.py.
from hvdlite._version import __version__ as __version__
from hvdlite.basics import add_process_set as add_process_set
from hvdlite.basics import ccl_built as ccl_built
from hvdlite.basics import cross_rank as cross_rank
from hvdlite.basics import cross_size as cross_size
from hvdlite.basics import cuda_built as cuda_built
from hvdlite.basics import ddl_built as ddl_built
from hvdlite.basics import gloo_built as gloo_built
from hvdlite.basics import gloo_enabled as gloo_enabled
from hvdlite.basics import init as init
from hvdlite.basics import is_homogeneous as is_homogeneous
from hvdlite.basics import is_initialized as is_initialized
from hvdlite.basics import local_rank as local_rank
from hvdlite.basics import local_size as local_size
from hvdlite.basics import mpi_built as mpi_built
from hvdlite.basics import mpi_enabled as mpi_enabled
from hvdlite.basics import mpi_threads_supported as mpi_threads_supported
from hvdlite.basics import nccl_built as nccl_built
from hvdlite.basics import process_set_ranks as process_set_ranks
from hvdlite.basics import rank as rank
from hvdlite.basics import remove_process_set as remove_process_set
from hvdlite.basics import rocm_built as rocm_built
from hvdlite.basics import shutdown as shutdown
from hvdlite.basics import size as size
from hvdlite.basics import start_timeline as start_timeline
from hvdlite.basics import stop_timeline as stop_timeline
from hvdlite.calls import barrier as barrier
from hvdlite.exceptions import HorovodInternalError as HorovodInternalError
from hvdlite.objects import allgather_object as allgather_object
from hvdlite.objects import broadcast_object as broadcast_object
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.request import ADASUM
from hvdlite.request import AVERAGE
from hvdlite.request import MAX
from hvdlite.request import MIN
from hvdlite.request import PRODUCT
from hvdlite.request import SUM
from hvdlite.torch import elastic as elastic
from hvdlite.torch.allreduce_ops import allreduce as allreduce
from hvdlite.torch.allreduce_ops import allreduce_ as allreduce_
from hvdlite.torch.allreduce_ops import allreduce_async as allreduce_async
from hvdlite.torch.allreduce_ops import allreduce_async_ as allreduce_async_
from hvdlite.torch.allreduce_ops import grouped_allreduce as grouped_allreduce
from hvdlite.torch.allreduce_ops import grouped_allreduce_ as grouped_allreduce_
from hvdlite.torch.allreduce_ops import grouped_allreduce_async as grouped_allreduce_async
from hvdlite.torch.allreduce_ops import grouped_allreduce_async_ as grouped_allreduce_async_
from hvdlite.torch.compression import Compression as Compression
from hvdlite.torch.cuda_graph import cuda_graph as cuda_graph
from hvdlite.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from hvdlite.torch.functions import broadcast_parameters as broadcast_parameters
from hvdlite.torch.handles import poll as poll
from hvdlite.torch.handles import synchronize as synchronize
from hvdlite.torch.ops import allgather as allgather
from hvdlite.torch.ops import allgather_async as allgather_async
from hvdlite.torch.ops import alltoall as alltoall
from hvdlite.torch.ops import alltoall_async as alltoall_async
from hvdlite.torch.ops import broadcast as broadcast
from hvdlite.torch.ops import broadcast_ as broadcast_
from hvdlite.torch.ops import broadcast_async as broadcast_async
from hvdlite.torch.ops import broadcast_async_ as broadcast_async_
from hvdlite.torch.ops import grouped_allgather as grouped_allgather
from hvdlite.torch.ops import grouped_allgather_async as grouped_allgather_async
from hvdlite.torch.ops import grouped_reducescatter as grouped_reducescatter
from hvdlite.torch.ops import grouped_reducescatter_async as grouped_reducescatter_async
from hvdlite.torch.ops import join as join
from hvdlite.torch.ops import reducescatter as reducescatter
from hvdlite.torch.ops import reducescatter_async as reducescatter_async
from hvdlite.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from hvdlite.torch.sparse import sparse_allreduce_async as sparse_allreduce_async
from hvdlite.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from hvdrun.function import run as run
Adasum = ADASUM

Average = AVERAGE

Max = MAX

Min = MIN

Product = PRODUCT

Sum = SUM
