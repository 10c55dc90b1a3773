"""The launcher: `horovodrun` on the command line, `run_command` from Python."""

from hvdrun.errors import LaunchError
from hvdrun.run import run_command

__all__ = ["LaunchError", "run_command"]
