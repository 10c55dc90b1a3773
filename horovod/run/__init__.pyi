# Written by tools/stubs.py.
from hvdrun.function import run as run
