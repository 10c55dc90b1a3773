# Written by tools/stubs.py.
from hvdlite.basics import size as size
from hvdlite.request import SUM as SUM
from hvdlite.tensorflow.ops import allreduce as allreduce
from hvdlite.tensorflow.ops import grouped_allreduce as grouped_allreduce
from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
