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
from hvdlite.exceptions import HorovodInternalError as HorovodInternalError
from hvdlite.keras import callbacks as callbacks
from hvdlite.keras import elastic as elastic
from hvdlite.keras.functions import DistributedOptimizer as DistributedOptimizer
from hvdlite.keras.functions import PartialDistributedOptimizer as PartialDistributedOptimizer
from hvdlite.keras.functions import allgather as allgather
from hvdlite.keras.functions import allreduce as allreduce
from hvdlite.keras.functions import broadcast as broadcast
from hvdlite.keras.functions import broadcast_global_variables as broadcast_global_variables
from hvdlite.keras.functions import reducescatter as reducescatter
from hvdlite.objects import allgather_object as allgather_object
from hvdlite.objects import broadcast_object as broadcast_object
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.request import ADASUM
from hvdlite.request import AVERAGE
from hvdlite.request import SUM
from hvdlite.tensorflow.compression import Compression as Compression
from hvdrun.function import run as run
from typing import Any
Adasum = ADASUM

Average = AVERAGE

Sum = SUM

def load_model(filepath: Any, custom_optimizers: Any=None, custom_objects: dict[str, Any] | None=None, compression: Any=..., legacy_opts: bool=False) -> Any:
    """A saved model of the package `keras`, with its optimizer wrapped and its state kept.

    `custom_optimizers` are classes of one's own, `custom_objects` whatever else the file names.
    `legacy_opts` is accepted for compatibility. Raises what `keras.models.load_model` raises.
    """
