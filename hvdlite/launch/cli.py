"""The command `horovodrun`: options in, exit code out, one line for every mistake."""

from __future__ import annotations

import os
import sys

from hvdlite.launch.errors import LaunchError, say


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return the exit code."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except LaunchError as error:
        if str(error):
            say(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _main(argv: list[str]) -> int:
    from hvdlite.launch.options import count_of_ranks, parse, settings_environment

    args = parse(argv)
    if args.version:
        from hvdlite._version import __version__

        print(__version__)
        return 0
    if args.check_build:
        from hvdlite.launch.check_build import report

        print(report(), end="")
        return 0
    np = count_of_ranks(args.np)
    if args.verbose and (args.mpi or args.gloo):
        say("--mpi and --gloo are the same here: there is one runtime, on MPI")

    from hvdlite.launch.run import run_command

    return run_command(
        args.command,
        np,
        hosts=args.hosts,
        hostfile=args.hostfile,
        env={**os.environ, **settings_environment(args)},
        output_folder=args.output_filename,
        timestamps=args.timestamps,
        mpi_args=args.mpi_args,
        binding_args=args.binding_args,
        tcp=args.tcp,
        nics=[name for item in args.nics or [] for name in item.split(",") if name],
        ssh_port=args.ssh_port,
        ssh_identity_file=args.ssh_identity_file,
        start_timeout=_start_timeout(args.start_timeout),
        verbose=args.verbose,
    )


def _start_timeout(option: float | None) -> float:
    text = os.environ.get("HOROVOD_START_TIMEOUT", "30")
    try:
        return option or float(text)
    except ValueError:
        raise LaunchError(f"HOROVOD_START_TIMEOUT={text} is not a number of seconds") from None
