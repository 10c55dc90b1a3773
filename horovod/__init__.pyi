# Written by tools/stubs.py.
from horovod import common as common
from horovod import keras as keras
from horovod import runner as runner
from horovod import tensorflow as tensorflow
from horovod import torch as torch
from hvdrun.function import run as run

__version__: str
