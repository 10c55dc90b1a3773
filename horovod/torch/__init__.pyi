# Written by tools/stubs.py.
from hvdlite.torch import *
from horovod.torch import mpi_ops as mpi_ops
