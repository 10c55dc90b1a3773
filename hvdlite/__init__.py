"""hvdlite: Horovod's interface on a runtime that one person can read in an afternoon."""

from hvdlite._version import __version__

__all__ = ["__version__"]
