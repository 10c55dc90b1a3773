"""The strategy "horovod" of Lightning 1, which Lightning 2 has dropped; hvdlite.lightning has it.

Lightning learns the name when it is imported, the class when a Trainer or a program asks for it.
"""

import importlib
import os
import re
from types import ModuleType
from typing import Any

from hvdnames.imports import missing, no_attribute


def _strategies(module: ModuleType) -> None:
    def look_up(name: str) -> Any:
        if name != "HorovodStrategy":
            raise no_attribute(module, name)
        package = module.__name__.removesuffix(".strategies")
        return importlib.import_module("hvdlite.lightning").strategy_for(package)

    def make(**options: Any) -> Any:
        return look_up("HorovodStrategy")(**options)

    if "horovod" not in module.StrategyRegistry:  # Lightning 1 has its own
        module.StrategyRegistry.register("horovod", make, description="hvdlite's ranks")
        missing(module, look_up)
    _tell_the_rank()
    _tell_tasks_per_node()


def _tell_the_rank() -> None:
    """What a program prints and logs by rank_zero_only before it has a Trainer comes once, too."""
    # Only here, as programs that use Keras alone come by this file as well.
    from hvdlite.runtime.launchers import rank_of

    only = importlib.import_module("lightning_utilities.core.rank_zero").rank_zero_only
    only.rank = rank_of(os.environ) or getattr(only, "rank", 0)


def _tell_tasks_per_node() -> None:
    """Lightning refuses a job of Slurm's without this variable, by which its own strategies count.

    Slurm sets it after --ntasks-per-node only; after --ntasks it says the same in another one.
    """
    tasks = re.match(r"\d+", os.environ.get("SLURM_TASKS_PER_NODE", ""))
    if tasks:
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", tasks[0])


PATCHES = {f"{name}.strategies": _strategies for name in ("lightning.pytorch", "pytorch_lightning")}
