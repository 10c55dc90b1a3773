"""`horovod.torch.mpi_ops`: the binding's names, and those that libraries reach for there."""

from horovod._basics import HorovodBasics
from horovod._common_util import (
    get_average_backwards_compatibility_fun,
    gpu_available,  # noqa: F401
    num_rank_is_power_2,  # noqa: F401
)
from hvdlite.torch import *  # noqa: F403

_basics = HorovodBasics()
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
