"""Programs import names of Keras 2 before Horovod; then the supply has to be there before both.

Those for Lightning 1 need not import Horovod at all.

`hvdnames.pth`, which lies beside the installed packages, imports this at each start of Python. It
waits for the first import of Keras, TensorFlow or Lightning, and looks only then whether this is a
program for Horovod. It imports nothing, so that other programs lose no time.
"""

import os
import sys


def _for_horovod() -> bool:
    """Whether the running program names Horovod, or horovodrun has started it."""
    if os.environ.get("HVDLITE_OLD_NAMES") == "0":
        return False
    if "HVDLITE_REPORT" in os.environ or any("horovod" in each for each in sys.orig_argv):
        return True
    try:
        with open(sys.argv[0], "rb") as program:
            text = program.read(2**20)
    except (OSError, IndexError):
        return False
    return b"horovod" in text or b"hvdlite" in text


class _Start:
    def find_spec(self, name, path, target=None):
        """Nothing; before one of these packages, all that is to be supplied is set up."""
        if name not in ("keras", "tensorflow", "lightning", "pytorch_lightning"):
            return None
        sys.meta_path.remove(self)
        if _for_horovod():
            import hvdnames

            hvdnames.supply()
            hvdnames.supply_strategy()
        for finder in list(sys.meta_path):
            if (spec := finder.find_spec(name, path, target)) is not None:
                return spec
        return None


sys.meta_path.insert(0, _Start())
