"""`run_command`: from a command and a number of ranks to the exit code."""

import os
from collections.abc import Mapping
from typing import Any, TextIO

from hvdrun.errors import LaunchError
from hvdrun.hosts import place
from hvdrun.job import Job
from hvdrun.options import complete, is_elastic, settings_environment
from hvdrun.prepare import Preparation
from hvdrun.slurm import check_step


def run_command(
    command: list[str],
    np: int | None,
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | TextIO = 1,
    stderr: int | TextIO = 2,
    **options: Any,
) -> int:
    """Run `command` as `np` ranks and return the job's exit code.

    The code is 0 if all ranks succeed, else that of the first rank to fail (128 + N if signal N
    killed it). `env` is the ranks' environment (default: this process's), `stdout` and `stderr`
    take the tagged output; `options` are horovodrun's, by the names that `options.parse` gives
    them. Raises LaunchError, before any rank starts, if the job can't start.
    """
    args = complete(options)
    np = args.min_np if np is None else np
    if np is None:
        raise LaunchError("how many ranks? Write -np N before the command")
    if np < 1:
        raise LaunchError(f"there must be at least 1 rank, and not {np}")
    environment = {**(os.environ if env is None else env), **settings_environment(args)}
    check_step(environment, np)
    preparation = Preparation(command, args, environment)
    if is_elastic(args):
        from hvdrun.elastic.driver import run  # others need not load it

        return run(preparation, np, stdout, stderr)
    placed = place(args, np, environment)
    if problems := preparation.problems([name for name, _ in placed]):
        told = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise LaunchError(f"can't start ranks on {told}")
    return preparation.run(Job(np, args, stdout, stderr), placed)
