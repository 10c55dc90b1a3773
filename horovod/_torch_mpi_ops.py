"""`horovod.torch.mpi_ops`: the binding's names, and those that libraries reach for there."""

from horovod._basics import HorovodBasics
from hvdlite.torch import *  # noqa: F403

_basics = HorovodBasics()
