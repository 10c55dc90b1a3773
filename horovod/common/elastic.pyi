# Written by tools/stubs.py.
from hvdlite import basics as basics
from hvdlite.elastic import restart as restart
from hvdlite.elastic.state import ObjectState as ObjectState
from hvdlite.elastic.state import State as State
from hvdlite.elastic.state import notification_manager as notification_manager
from hvdlite.elastic.state import reset as reset
from hvdlite.elastic.state import run as run
from hvdlite.elastic.state import run_fn as run_fn
from hvdlite.exceptions import HorovodInternalError as HorovodInternalError
from hvdlite.exceptions import HostsUpdatedInterrupt as HostsUpdatedInterrupt
