# Written by tools/stubs.py.
from hvdlite.tensorflow.keras import *
