# Written by tools/stubs.py.
from hvdlite.elastic.state import ObjectState as ObjectState
from hvdlite.elastic.state import State as State
from hvdlite.elastic.state import run as run
from hvdlite.elastic.state import run_fn as run_fn
from hvdlite.keras.elastic import CommitStateCallback as CommitStateCallback
from hvdlite.keras.elastic import KerasState as KerasState
from hvdlite.keras.elastic import UpdateBatchStateCallback as UpdateBatchStateCallback
from hvdlite.keras.elastic import UpdateEpochStateCallback as UpdateEpochStateCallback
