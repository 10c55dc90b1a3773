"""What Keras 3, TensorFlow 2 and Lightning 2 have removed and programs for Horovod use.

A package beside the runtime, which only asks for `supply()`. It adds what is missing and nothing
else: a program that uses none of it finds Keras and TensorFlow as they are. What a program did
use is said once, when it ends. `HVDLITE_OLD_NAMES=0` switches all of it off.

`keras_names` and `saving` hold what Keras 3 lacks, `tensorflow_names` what TensorFlow 2 lacks, and
`lightning_names` brings Lightning 2 its strategy.
"""

import atexit
import os
import sys

VARIABLE = "HVDLITE_OLD_NAMES"
_used: dict[str, None] = {}


def supply() -> None:
    """Add the old names to Keras and TensorFlow, those imported and those still to come."""
    if os.environ.get(VARIABLE, "1") == "0":
        return
    from hvdnames import imports, keras_names, tensorflow_names

    imports.watch(keras_names.PATCHES | tensorflow_names.PATCHES)
    imports.add_modules(keras_names.MODULES)


def supply_strategy() -> None:
    """Add the strategy "horovod" to Lightning, imported or still to come."""
    if os.environ.get(VARIABLE, "1") == "0":
        return
    from hvdnames import imports, lightning_names

    imports.watch(lightning_names.PATCHES)


def used(name: str) -> None:
    """Take down that the program has used an old name."""
    if not _used:
        atexit.register(_report)
    _used[name] = None


def _report() -> None:
    from hvdlite.runtime.launchers import rank_of

    if rank_of(os.environ) == 0:
        print(
            "hvdlite: this program uses names that Keras 3 and TensorFlow 2 have removed; they "
            f"were supplied ({VARIABLE}=0 switches that off): {', '.join(_used)}",
            file=sys.stderr,
        )
