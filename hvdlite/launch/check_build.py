"""`horovodrun --check-build`: what this installation can do, in Horovod's form."""

from __future__ import annotations

import glob
import os
from importlib.util import find_spec

from hvdlite._version import __version__
from hvdlite.launch.errors import LaunchError
from hvdlite.launch.mpi import find_mpi

_FORM = """\
hvdlite v{version}:

Available Frameworks:
    [{tensorflow}] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [{mpi}] MPI
    [ ] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [ ] DDL
    [ ] CCL
    [{mpi}] MPI
    [ ] Gloo
"""


def report() -> str:
    """The whole text. Looks for packages without importing them."""
    found = {
        "tensorflow": _has("tensorflow") and _has("hvdlite.tensorflow"),
        "torch": _has("torch") and _has("hvdlite.torch"),
        "mpi": _has("mpi4py") and _has_mpirun(),
        "nccl": _has_nccl(),
    }
    return _FORM.format(version=__version__, **{k: "X" if v else " " for k, v in found.items()})


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _has_mpirun() -> bool:
    try:
        find_mpi(os.environ)
    except LaunchError:
        return False
    return True


def _has_nccl() -> bool:
    """CuPy's own NCCL module is there only if CuPy was built with NCCL."""
    spec = find_spec("cupy_backends") if _has("cupy") else None
    folders = spec.submodule_search_locations if spec else []
    return any(glob.glob(os.path.join(f, "cuda", "libs", "nccl.*so")) for f in folders or [])
