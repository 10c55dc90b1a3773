# Written by tools/stubs.py.
from hvdlite.exceptions import HorovodInternalError as HorovodInternalError
from hvdlite.exceptions import HorovodVersionMismatchError as HorovodVersionMismatchError
from hvdlite.exceptions import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from hvdlite.exceptions import NotInitializedError as NotInitializedError
