# Written by tools/stubs.py.
from hvdlite import *
