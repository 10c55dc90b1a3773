"""The launcher: `horovodrun` on the command line, `run_command` from Python."""

from hvdlite.launch.errors import LaunchError
from hvdlite.launch.run import run_command

__all__ = ["LaunchError", "run_command"]
