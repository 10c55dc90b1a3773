"""What all commands do with an error: a line on stderr and an exit code, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


def fail(message: str, code: int = 1) -> typer.Exit:
    """Say on stderr what went wrong; raise the result."""
    print(f"hvdlab: {message}", file=sys.stderr, flush=True)
    return typer.Exit(code)


@contextmanager
def errors(*kinds: type[Exception], interrupted: str = "", code: int = 1) -> Iterator[None]:
    """Within, an error of these kinds ends the command with its message, and with this code.

    `interrupted` is what to say after Ctrl-C, where there is more to say than that.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not interrupted:
            raise
        raise fail(interrupted, 130) from None
    except (typer.Exit, BrokenPipeError):  # ended already; such as `| head`, which ends quietly
        raise
    except kinds as error:
        raise fail(str(error), code) from None
