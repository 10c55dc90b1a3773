# Written by tools/stubs.py.
from hvdlite.elastic.state import ObjectState as ObjectState
from hvdlite.elastic.state import State as State
from hvdlite.elastic.state import run as run
from hvdlite.elastic.state import run_fn as run_fn
from hvdlite.tensorflow.elastic import TensorFlowKerasState as TensorFlowKerasState
from hvdlite.tensorflow.elastic import TensorFlowState as TensorFlowState
