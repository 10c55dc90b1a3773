"""What mpirun starts for each rank of an elastic job: it asks this machine's agent for the rank.

Run by its path and without any package, as it shall start at once. It hands its environment and
its files to the agent, which forks the rank, and ends when the agent lets go of it. How the rank
has ended the agent tells the launcher, and mpirun need not know.
"""

import contextlib
import json
import os
import socket
import sys


def main(folder: str, generation: str, *command: str) -> None:
    """Be the rank for mpirun."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"{folder}{os.environ.get('SLURMD_NODENAME', '')}/socket")
        request = {"generation": int(generation), "environment": dict(os.environ),
                   "folder": os.getcwd(), "command": command}  # fmt: skip
        socket.send_fds(line, [b"files"], [0, 1, 2])
        line.sendall(json.dumps(request).encode() + b"\n")
        with contextlib.suppress(OSError):
            line.recv(1)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
