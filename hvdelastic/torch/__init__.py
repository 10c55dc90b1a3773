"""`hvd.elastic` of the PyTorch binding."""

from hvdelastic.state import ObjectState, State, run, run_fn
from hvdelastic.torch.sampler import ElasticSampler
from hvdelastic.torch.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "run_fn"]
