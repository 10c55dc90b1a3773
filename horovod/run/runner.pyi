# Written by tools/stubs.py.
from horovod.runner.launch import run_commandline as run_commandline
from hvdrun.function import run as run
