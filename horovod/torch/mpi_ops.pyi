# Written by tools/stubs.py.
from horovod._basics import HorovodBasics as HorovodBasics
from horovod._torch_mpi_ops import _basics as _basics
from hvdlite.torch import *
