"""What Keras 3, TensorFlow 2 and Lightning 2 have removed and programs for Horovod use.

A package beside the runtime, which only asks for `supply()`. It adds what is missing and nothing
else: a program that uses none of it finds Keras and TensorFlow as they are. What a program did
use is said once, when it ends. `HVDLITE_OLD_NAMES=0` switches all of it off.

`keras_names`, `keras_modules`, `keras_layers` and `saving` hold what Keras 3 lacks,
`tensorflow_names` and `estimators` what TensorFlow 2 lacks, `lightning_names` brings Lightning 2
its strategy, `lightning_1` what else it lacks, and `torchvision_names` lets torchvision be imported
beside a PyTorch that it was not built for. Where a framework is missing as a whole, `needs` says
what installs it.
"""

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

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


def supply(program: str = "") -> None:
    """Add the old names to Keras and TensorFlow, those imported and those still to come.

    `program`, the text of the running one, tells whether it needs TensorFlow 1 from the start.
    """
    if os.environ.get(VARIABLE, "1") == "0":
        return
    from hvdnames import imports, keras_modules, keras_names, tensorflow_names

    if "tensorflow" not in sys.modules:
        tensorflow_names.prepare(program)
    imports.watch(keras_names.PATCHES | keras_modules.PATCHES | tensorflow_names.PATCHES)
    imports.add_modules(keras_modules.MODULES)


def supply_beside_torch() -> None:
    """Add the strategy "horovod" and old names to Lightning; let torchvision be imported."""
    if os.environ.get(VARIABLE, "1") == "0":
        return
    from hvdnames import imports, lightning_1, lightning_names

    imports.watch(lightning_names.PATCHES | lightning_1.PATCHES)
    supply_torchvision()


def supply_torchvision() -> None:
    """Let torchvision be imported beside a PyTorch that it was not built for."""
    if os.environ.get(VARIABLE, "1") == "0":
        return
    from hvdnames import imports, torchvision_names

    imports.watch(torchvision_names.PATCHES)


def used(name: str) -> None:
    """Take down that the program has used an old name."""
    if not _used:
        atexit.unregister(_report)  # from what was `unsaid`
        atexit.register(_report)
    _used[name] = None


@contextlib.contextmanager
def unsaid() -> Iterator[None]:
    """Leave out what is used meanwhile, which the program has not asked for itself."""
    before = dict(_used)
    yield
    _used.clear()
    _used.update(before)


def _report() -> None:
    from hvdlite.runtime.launchers import rank_of

    if _used and rank_of(os.environ) == 0:
        print(
            "hvdlite: this program uses names that Keras 3, TensorFlow 2 or Lightning 2 has "
            f"removed; they were supplied ({VARIABLE}=0 switches that off): {', '.join(_used)}",
            file=sys.stderr,
        )
