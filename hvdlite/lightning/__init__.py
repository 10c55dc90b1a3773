"""Lightning 2 on hvdlite: `Trainer(strategy="horovod")`, and the class HorovodStrategy.

Lightning comes as `lightning.pytorch` and, under its old name, as `pytorch_lightning`: two sets of
classes, so that there is a strategy for each. A Trainer finds its own under the name "horovod", and
a program in `lightning.pytorch.strategies` (`pytorch_lightning.strategies`), where it was in
Lightning 1; hvdnames puts it there.
"""

import functools
import importlib
import importlib.util
import sys

__all__ = ["HorovodStrategy", "strategy_for"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@functools.cache
def strategy_for(package: str) -> type:
    """The class HorovodStrategy for Trainers of `package`, one of PACKAGES.

    Raises ModuleNotFoundError where Lightning is not installed.
    """
    from hvdlite.lightning.strategy import HorovodMethods

    base = importlib.import_module(f"{package}.strategies").ParallelStrategy
    details = {"__module__": __name__, "__doc__": HorovodMethods.__doc__}
    return type("HorovodStrategy", (HorovodMethods, base), details)


def _package() -> str:
    """The package that the program uses: the one that it has imported, else the one that is there.

    Raises ModuleNotFoundError where there is none.
    """
    for package in PACKAGES:
        if package in sys.modules:
            return package
    for package in PACKAGES:
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            return package
    raise ModuleNotFoundError(
        "hvdlite.lightning needs lightning, which is not installed: pip install "
        "'hvdlite[lightning]'",
        name="lightning",
    )


def __getattr__(name: str) -> object:
    if name == "HorovodStrategy":
        return strategy_for(_package())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
