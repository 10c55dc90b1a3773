"""Horovod's module of that name: `python -m horovod.runner.launch` is `horovodrun`."""

import sys

from hvdrun.cli import main
from hvdrun.function import run

__all__ = ["run", "run_commandline"]


def run_commandline() -> None:
    """Run this process's command line as `horovodrun`'s, and end with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run_commandline()
