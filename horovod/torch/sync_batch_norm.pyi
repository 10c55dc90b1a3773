# Written by tools/stubs.py.
from hvdlite.basics import size as size
from hvdlite.torch import ops as ops
from hvdlite.torch.autograd import grouped_allreduce as grouped_allreduce
from hvdlite.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
