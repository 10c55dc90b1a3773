# Written by tools/stubs.py.
from hvdlite.process_sets import ProcessSet as ProcessSet
from hvdlite.process_sets import as_process_set as as_process_set
from hvdlite.process_sets import global_process_set as global_process_set
