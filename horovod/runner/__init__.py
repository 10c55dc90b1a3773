"""Horovod's module of that name: `from horovod.runner import run`."""

from hvdrun.function import run

__all__ = ["run"]
