# Written by tools/stubs.py.
from hvdlite.basics import rank as rank
from hvdlite.basics import size as size
from hvdlite.torch.elastic.sampler import ElasticSampler as ElasticSampler
