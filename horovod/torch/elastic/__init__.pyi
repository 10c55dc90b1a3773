# Written by tools/stubs.py.
from hvdlite.elastic.state import ObjectState as ObjectState
from hvdlite.elastic.state import State as State
from hvdlite.elastic.state import run as run
from hvdlite.elastic.state import run_fn as run_fn
from hvdlite.torch.elastic.sampler import ElasticSampler as ElasticSampler
from hvdlite.torch.elastic.state import TorchState as TorchState
