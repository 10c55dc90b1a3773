# Written by tools/stubs.py.
from hvdlite.collectives.adasum import check_size as check_size
from hvdlite.compression import Compressor as Compressor
from hvdlite.gradients.options import GradientOptions as GradientOptions
from hvdlite.gradients.options import check_groups as check_groups
from hvdlite.gradients.wrapping import wrap as wrap
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.request import ADASUM as ADASUM
from hvdlite.request import AVERAGE as AVERAGE
from hvdlite.torch.adasum import AdasumMixin as AdasumMixin
from hvdlite.torch.adasum import StepSync as StepSync
from hvdlite.torch.amp import reduce_before_scaling as reduce_before_scaling
from hvdlite.torch.compression import Compression as Compression
from hvdlite.torch.functions import check_optimizer as check_optimizer
from hvdlite.torch.gradients import GradientSync as GradientSync
from hvdlite.torch.mixin import DistributedMixin as DistributedMixin
from hvdlite.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from hvdlite.torch.mixin import DistributedMixin
_DistributedOptimizer = DistributedMixin
