"""`hvd.elastic` of the PyTorch binding."""

from hvdlite.elastic.state import ObjectState, State, run, run_fn
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "run_fn"]
