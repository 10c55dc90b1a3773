# Written by tools/stubs.py.
from hvdlite.basics import rank as rank
from hvdlite.elastic.state import ObjectState as ObjectState
from hvdlite.objects import broadcast_object as broadcast_object
from hvdlite.torch.elastic.sampler import ElasticSampler as ElasticSampler
from hvdlite.torch.elastic.state import ModelStateHandler as ModelStateHandler
from hvdlite.torch.elastic.state import OptimizerStateHandler as OptimizerStateHandler
from hvdlite.torch.elastic.state import SamplerStateHandler as SamplerStateHandler
from hvdlite.torch.elastic.state import StateHandler as StateHandler
from hvdlite.torch.elastic.state import TorchState as TorchState
from hvdlite.torch.elastic.state import get_handler_registry as get_handler_registry
from hvdlite.torch.elastic.state import set_handler_registry as set_handler_registry
from hvdlite.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from hvdlite.torch.functions import broadcast_parameters as broadcast_parameters
from hvdlite.torch.functions import load_in_place as load_in_place
from hvdlite.torch.functions import walk as walk
