# Written by tools/stubs.py.
from horovod._basics import HorovodBasics as HorovodBasics
from horovod._common_util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod._common_util import gpu_available as gpu_available
from horovod._common_util import num_rank_is_power_2 as num_rank_is_power_2
from horovod._torch_mpi_ops import _basics as _basics
from horovod._torch_mpi_ops import handle_average_backwards_compatibility as handle_average_backwards_compatibility
from hvdlite.torch import *
