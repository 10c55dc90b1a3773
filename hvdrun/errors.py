"""What the launcher says when it can't start, or when a job fails."""

import contextlib
import os
import sys


class LaunchError(Exception):
    """The job can't be started. The message is one line for the user: what is wrong, what to do."""


def say(message: str) -> None:
    """Print one line of the launcher's own to standard error."""
    with contextlib.suppress(OSError):  # nobody listens any more; the exit code still tells
        sys.stderr.flush()
        os.write(2, f"horovodrun: {message}\n".encode(sys.getfilesystemencoding(), "replace"))
