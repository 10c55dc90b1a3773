# Written by tools/stubs.py.
from hvdlite.basics import size as size
from hvdlite.request import SUM as SUM
from hvdlite.torch.allreduce_ops import grouped_allreduce as grouped_allreduce
from hvdlite.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
