# Written by tools/stubs.py.
from hvdlite.keras import *
