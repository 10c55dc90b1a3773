"""Programs import names of Keras 2 before Horovod; then the supply has to be there before both.

Those for Lightning 1 need not import Horovod at all.

`hvdnames.pth`, which lies beside the installed packages, imports this at each start of Python. It
waits for the first import of Keras, TensorFlow, Lightning or torchvision, and looks only then
whether this is a program for Horovod. It imports nothing, so that other programs lose no time.
"""

import os
import sys


def _text() -> str:
    """The text of the running program; none where it is not a file, as in a notebook."""
    try:
        with open(sys.argv[0], errors="replace") as program:
            return program.read(2**20)
    except (OSError, IndexError):
        return ""


def _for_horovod() -> bool:
    """Whether the running program names Horovod, or horovodrun has started it."""
    if os.environ.get("HVDLITE_OLD_NAMES") == "0":
        return False
    if "HVDLITE_REPORT" in os.environ or any("horovod" in each for each in sys.orig_argv):
        return True
    text = _text()
    return "horovod" in text or "hvdlite" in text


class _Start:
    awaited = ("keras", "tensorflow", "lightning", "pytorch_lightning", "torchvision")

    def find_spec(self, name, path, target=None):
        """Nothing; before one of these packages, all that is to be supplied is set up."""
        if name not in self.awaited:
            return None
        if _for_horovod():
            import hvdnames

            self.awaited = ()
            hvdnames.supply(_text())
            hvdnames.supply_beside_torch()
        elif name == "torchvision":  # for every program: other packages import it, if it is there
            import hvdnames

            self.awaited = ()
            hvdnames.supply_torchvision()
        else:
            self.awaited = ("torchvision",)
            return None
        for finder in list(sys.meta_path):
            if (spec := finder.find_spec(name, path, target)) is not None:
                return spec
        return None


sys.meta_path.insert(0, _Start())
