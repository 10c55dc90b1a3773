# Written by tools/stubs.py.
from horovod._basics import HorovodBasics as HorovodBasics
from horovod._common_util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod._common_util import gpu_available as gpu_available
from horovod._common_util import num_rank_is_power_2 as num_rank_is_power_2
from horovod._tensorflow_mpi_ops import _allreduce as _allreduce
from horovod._tensorflow_mpi_ops import _basics as _basics
from horovod._tensorflow_mpi_ops import handle_average_backwards_compatibility as handle_average_backwards_compatibility
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.tensorflow import *
from hvdlite.tensorflow.ops import Sum as Sum
from hvdlite.tensorflow.ops import allreduce as allreduce
