# Written by tools/stubs.py.
from hvdlite import calls as calls
from hvdlite import objects as objects
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import global_process_set as global_process_set
from hvdlite.tensorflow import gpu as gpu
from hvdlite.tensorflow.functions import allgather_object as allgather_object
from hvdlite.tensorflow.functions import broadcast_ as broadcast_
from hvdlite.tensorflow.functions import broadcast_object as broadcast_object
from hvdlite.tensorflow.functions import broadcast_object_fn as broadcast_object_fn
from hvdlite.tensorflow.functions import broadcast_variables as broadcast_variables
from hvdlite.tensorflow.graph import as_tensorflow as as_tensorflow
from hvdlite.tensorflow.graph import call as call
from hvdlite.tensorflow.graph import name_of as name_of
from hvdlite.tensorflow.ops import as_tensors as as_tensors
