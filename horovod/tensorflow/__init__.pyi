# Written by tools/stubs.py.
from hvdlite.tensorflow import *
from horovod.tensorflow import mpi_ops as mpi_ops, util as util
