# Written by tools/stubs.py.
from horovod._basics import HorovodBasics as HorovodBasics
from horovod._tensorflow_mpi_ops import _allreduce as _allreduce
from horovod._tensorflow_mpi_ops import _basics as _basics
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.tensorflow import *
from hvdlite.tensorflow.ops import Sum as Sum
from hvdlite.tensorflow.ops import allreduce as allreduce
