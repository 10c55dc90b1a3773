"""The command `hvdlab`, also as `python -m hvdlab`."""

import os
import sys

EXTRA = "pip install 'hvdlite[labs]'"


def main() -> None:
    """Run the command; where its packages are missing, say in one line which extra has them."""
    try:
        from hvdlab.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hvdlab":
            raise
        sys.exit(f"hvdlab: {error.name} is not installed: {EXTRA}")
    try:
        app(prog_name="hvdlab")
    finally:
        try:
            sys.stdout.flush()
        except (
            BrokenPipeError
        ):  # nobody reads on, as with `| head`; Python would complain at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
