"""`horovodrun --check-build`: what this installation can do, in Horovod's form."""

import os
from importlib.util import find_spec
from pathlib import Path

from hvdlite._version import __version__
from hvdrun.errors import LaunchError
from hvdrun.mpi import find_mpi

_PARTS = {
    "Available Frameworks": ("TensorFlow", "PyTorch", "MXNet"),
    "Available Controllers": ("MPI", "Gloo"),
    "Available Tensor Operations": ("NCCL", "DDL", "CCL", "MPI", "Gloo"),
}


def report() -> str:
    """The whole text. Looks for packages without importing them."""
    found = {
        "TensorFlow": _has("tensorflow") and _has("hvdlite.tensorflow"),
        "PyTorch": _has("torch") and _has("hvdlite.torch"),
        "MPI": _has("mpi4py") and _has_mpirun(),
        "NCCL": _has_nccl(),
    }
    lines = [f"hvdlite v{__version__}:"]
    for title, names in _PARTS.items():
        lines += ["", f"{title}:", *(f"    [{'X' if found.get(n) else ' '}] {n}" for n in names)]
    return "\n".join(lines) + "\n"


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _has_mpirun() -> bool:
    try:
        return bool(find_mpi(os.environ))
    except LaunchError:
        return False


def _has_nccl() -> bool:
    """CuPy's own NCCL module is there only if CuPy was built with NCCL."""
    spec = find_spec("cupy_backends")
    folders = spec.submodule_search_locations if spec else []
    return any(True for f in folders for _ in Path(f).glob("cuda/libs/nccl.*so"))
