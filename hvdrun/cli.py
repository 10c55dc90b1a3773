"""The command `horovodrun`: options in, exit code out, one line for every mistake."""

import sys

from hvdrun import check_build
from hvdrun.errors import LaunchError, say
from hvdrun.options import completion, parse
from hvdrun.run import run_command


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return the exit code."""
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        if args.check_build:
            print(check_build.report(), end="")
            return 0
        if args.completion:
            print(completion(), end="")
            return 0
        if args.verbose and (args.mpi or args.gloo):
            say("--mpi and --gloo are the same here: there is one runtime, on MPI")
        return run_command(**vars(args))
    except LaunchError as error:
        if str(error):
            say(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
