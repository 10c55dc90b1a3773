# Written by tools/stubs.py.
from hvdlite.basics import size as size
from hvdlite.objects import allgather_object as allgather_object
from hvdlite.objects import broadcast_object as broadcast_object
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from hvdlite.torch.functions import broadcast_parameters as broadcast_parameters
from hvdlite.torch.functions import check_optimizer as check_optimizer
from hvdlite.torch.functions import load_in_place as load_in_place
from hvdlite.torch.functions import walk as walk
from hvdlite.torch.handles import synchronize as synchronize
from hvdlite.torch.ops import broadcast_async_ as broadcast_async_
