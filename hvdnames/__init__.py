"""What Keras 3, TensorFlow 2 and Lightning 2 have removed and programs for Horovod use.

A package beside the runtime, which only asks for `supply()`. It adds what is missing and nothing
else: a program that uses none of it finds Keras and TensorFlow as they are. What a program did
use is said once, when it ends. `HVDLITE_OLD_NAMES=0` switches all of it off.

`keras_names` and `saving` hold what Keras 3 lacks, `tensorflow_names` what TensorFlow 2 lacks, and
`lightning_names` brings Lightning 2 its strategy. Where a framework is missing as a whole, `needs`
says what installs it.
"""

import atexit
import importlib
import os
import sys

VARIABLE = "HVDLITE_OLD_NAMES"
# What installs a framework. Keras is in the same extra as TensorFlow.
_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
_used: dict[str, None] = {}


def needs(framework: str, by: str) -> None:
    """Import the framework of the binding `by`.

    Raises ModuleNotFoundError, with the extra that brings it, where it is not installed.
    """
    try:
        importlib.import_module(framework)
    except ModuleNotFoundError as error:  # Keras may lack what it computes with
        if error.name not in _EXTRAS:
            raise
        extra = _EXTRAS[error.name]
        small = ", or hvdlite[tensorflow-cpu] without CUDA" if extra == "tensorflow" else ""
        message = f"pip install 'hvdlite[{extra}]'{small}"
        raise ModuleNotFoundError(
            f"{by} needs {error.name}, which is not installed: {message}", name=error.name
        ) from None


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
