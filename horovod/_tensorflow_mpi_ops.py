"""`horovod.tensorflow.mpi_ops`: the binding's names, and the one that programs reach for there."""

from typing import Any

from horovod._basics import HorovodBasics
from horovod._common_util import (
    get_average_backwards_compatibility_fun,
    gpu_available,  # noqa: F401
    num_rank_is_power_2,  # noqa: F401
)
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.tensorflow import *  # noqa: F403
from hvdlite.tensorflow import Sum, allreduce

_basics = HorovodBasics()
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`allreduce` of one dense tensor, summed unless told otherwise."""
    return allreduce(
        tensor,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
    )
