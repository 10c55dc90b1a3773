"""The name `horovod`, served by hvdlite: `horovod.torch` is `hvdlite.torch`, the same module.

Programs written for Horovod run unchanged. Nothing is imported before it is asked for, so a
program that uses PyTorch never loads TensorFlow, and importing this starts no MPI.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

from hvdlite._version import __version__ as _ours
from hvdlite.runtime.launchers import rank_of

__all__ = ["__version__"]

# The version of Horovod whose interface this is, and ours behind it. A later release than 0.28.1
# to `packaging`, and three numbers to programs that split it at its dots.
__version__ = f"0.28.1.post0+hvdlite.{_ours}"

_FRAMEWORKS = ("torch", "tensorflow", "keras")
_OWN = ("horovod._", "horovod.runner")  # modules of this package
# Where a module of Horovod's has another place in hvdlite.
_PLACES = {
    "horovod.common.elastic": "hvdlite.elastic.state",
    "horovod.common.util": "horovod._common_util",
    "horovod.common": "hvdlite",
    "horovod.run.runner": "horovod.runner.launch",
    "horovod.run": "horovod.runner",
    "horovod.tensorflow.mpi_ops": "horovod._tensorflow_mpi_ops",
    "horovod.tensorflow.util": "horovod._tensorflow_util",
    "horovod.torch.mpi_ops": "horovod._torch_mpi_ops",
}
# Names of Horovod's modules that ours have elsewhere; there without an import of their own.
_ADDED = {
    "horovod.common.basics": {"HorovodBasics": "horovod._basics:HorovodBasics"},
    "horovod.tensorflow": {
        "mpi_ops": "horovod._tensorflow_mpi_ops",
        "util": "horovod._tensorflow_util",
        "_executing_eagerly": "horovod._tensorflow_util:_executing_eagerly",
        "gpu_available": "horovod._common_util:gpu_available",
        "refs_to_vars": "horovod._tensorflow_util:refs_to_vars",
        "vars_to_refs": "horovod._tensorflow_util:vars_to_refs",
    },
    "horovod.torch": {"mpi_ops": "horovod._torch_mpi_ops"},
    "horovod.torch.optimizer": {"_DistributedOptimizer": "hvdlite.torch.mixin:DistributedMixin"},
}
_INSTEAD = {
    "mxnet": "MXNet is no longer developed; train with horovod.torch",
    "ray": "start ranks with horovodrun, or with horovod.run(function, np=N) from a program",
    "runner": "start ranks with horovodrun, or with horovod.run(function, np=N) from a program",
    "spark": "prepare the data with Spark, write it to files, and start ranks with horovodrun",
    "tensorflow.data": "shard the data set by rank: dataset.shard(hvd.size(), hvd.rank())",
}


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `horovod.x.y` at hvdlite's place for it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("horovod."):
            return None
        if name.startswith(_OWN):
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is None:
                raise ModuleNotFoundError(_not_served(name), name=name)
            return spec
        if importlib.util.find_spec(_place(name)) is None:
            raise ModuleNotFoundError(_not_served(name), name=name)
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what it finds under the name afterwards: the very same module.
        served = importlib.import_module(_place(module.__name__))
        sys.modules[module.__name__] = served
        for name, place in _ADDED.get(module.__name__, {}).items():
            owner, _, attribute = place.partition(":")
            found = importlib.import_module(owner)
            setattr(served, name, getattr(found, attribute) if attribute else found)


def _place(name: str) -> str:
    for theirs, ours in _PLACES.items():
        if name == theirs or name.startswith(theirs + "."):
            return ours + name.removeprefix(theirs)
    return "hvdlite" + name.removeprefix("horovod")


def _not_served(name: str) -> str:
    for part, instead in _INSTEAD.items():
        if f"{name}.".startswith(f"horovod.{part}."):
            return f"hvdlite {_ours} does not serve {name}: {instead}"
    served = [f"horovod.{x}" for x in _FRAMEWORKS if importlib.util.find_spec(f"hvdlite.{x}")]
    return f"hvdlite {_ours} does not serve {name}; it serves {', '.join(served)}"


def _warn_about_horovod() -> None:
    """Say which of the two is in use where Horovod's own distribution is installed as well."""
    try:
        theirs = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return
    if rank_of(os.environ):
        return  # rank 0 says it for all
    warnings.warn(
        f"`import horovod` gives hvdlite {_ours}, although Horovod {theirs} is installed too."
        " To keep hvdlite: pip uninstall horovod, then pip install --force-reinstall --no-deps"
        " hvdlite. To use Horovod: pip uninstall hvdlite, then pip install --force-reinstall"
        " --no-deps horovod. `import hvdlite.torch` is hvdlite in any case.",
        stacklevel=3,
    )


def __getattr__(name: str) -> object:
    if name == "run":
        return importlib.import_module("horovod.runner").run
    if name in (*_FRAMEWORKS, "common", "runner"):
        return importlib.import_module(f"horovod.{name}")
    raise AttributeError(
        f"module 'horovod' (hvdlite {_ours}) has no attribute {name!r}; programs use a framework's "
        "part of it: import horovod.torch as hvd (or horovod.tensorflow, horovod.keras)"
    )


def __dir__() -> list[str]:
    return [*__all__, *_FRAMEWORKS]


# Before Python's own finders, which would load hvdlite's files a second time under another name.
sys.meta_path.insert(0, _Alias())
_warn_about_horovod()
