# Written by tools/stubs.py.
from hvdlite.tensorflow import *
from horovod.tensorflow import mpi_ops as mpi_ops, util as util
from horovod._tensorflow_util import _executing_eagerly as _executing_eagerly
from horovod._common_util import gpu_available as gpu_available
from horovod._tensorflow_util import refs_to_vars as refs_to_vars
from horovod._tensorflow_util import vars_to_refs as vars_to_refs
