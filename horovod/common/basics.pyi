# Written by tools/stubs.py.
from horovod._basics import HorovodBasics as HorovodBasics
from hvdlite import basics as basics
from hvdlite import request as request
