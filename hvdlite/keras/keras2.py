"""What programs for Keras 2 call and Keras 3 refuses: the user learns how to run them."""

import re
import sys
import traceback
from types import TracebackType

_REFUSED = re.compile(
    r"experimental_run_tf_function|'((fit|evaluate|predict)_generator|ImageDataGenerator)'"
    r"|not recognized: \{'(lr|decay)'|^(?=.*not callable).*\.variables\(\)",
    re.DOTALL,
)
_ADVICE = (
    "hvdlite: this is a program for Keras 2, and Keras 3 is another. To run it as it is, import "
    "tensorflow.keras and horovod.tensorflow.keras in it, and set TF_USE_LEGACY_KERAS=1 "
    "(pip install tf-keras). Write learning_rate= for lr= in any case: tf_keras ignores lr=."
)


def advise() -> None:
    """From now on an uncaught error of this kind is followed by the advice."""
    previous = sys.excepthook

    def hook(kind: type, error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        if _REFUSED.search(f"{error}{traceback.format_tb(trace)[-1:]}"):
            print(_ADVICE, file=sys.stderr)

    sys.excepthook = hook
