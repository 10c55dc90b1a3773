"""The launcher: `horovodrun` on the command line, `run_command` from Python."""

from __future__ import annotations

from hvdlite.launch.errors import LaunchError

__all__ = ["LaunchError", "run_command"]


def __getattr__(name: str) -> object:
    # `horovodrun --version` and a mistyped option need not wait for the whole launcher.
    if name == "run_command":
        from hvdlite.launch.run import run_command

        return run_command
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
