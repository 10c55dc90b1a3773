# Written by tools/stubs.py.
from horovod._common_util import _cache as _cache
from horovod._tensorflow_util import _executing_eagerly as _executing_eagerly
from horovod._tensorflow_util import _make_subgraph as _make_subgraph
from horovod._tensorflow_util import refs_to_vars as refs_to_vars
from horovod._tensorflow_util import vars_to_refs as vars_to_refs
