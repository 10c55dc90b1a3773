# Written by tools/stubs.py.
from hvdlite.elastic.state import ObjectState as ObjectState
from hvdlite.elastic.state import State as State
from hvdlite.elastic.state import run as run
from hvdlite.elastic.state import run_fn as run_fn
from hvdlite.tensorflow.elastic import TensorFlowKerasState
from hvdlite.tensorflow.keras.elastic import CommitStateCallback as CommitStateCallback
from hvdlite.tensorflow.keras.elastic import UpdateBatchStateCallback as UpdateBatchStateCallback
from hvdlite.tensorflow.keras.elastic import UpdateEpochStateCallback as UpdateEpochStateCallback
KerasState = TensorFlowKerasState
