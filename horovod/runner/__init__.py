"""Horovod's module of that name: `from horovod.runner import run`.

It is `horovod.run`, too, the module of old versions, which can be called as the function of new
ones.
"""

import sys
import types
from typing import Any

from hvdrun.function import run

__all__ = ["run"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
