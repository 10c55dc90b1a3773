"""Gives up what an untrusted script must not have, then becomes another program.

    python -m hvdlab.check.confine FOLDERS MEMORY_MB FILE_MB COMMAND...

Everything that the command starts inherits it: files may be changed in the FOLDERS (with a colon
between them) only, other processes can't be looked into, nor be sent signals; by Landlock, as far
as the kernel has it. A process has only so much memory, a file has only such a size.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on every architecture
_WRITING = sum(1 << bit for bit in (1, *range(4, 13)))  # write a file, make and remove anything
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
_OF_FILES = 1 << 1 | _TRUNCATE  # what can be granted for a single file
_SIGNALS = 1 << 1  # to processes outside: since version 6
_NO_NEW_PRIVILEGES, _DROP = 38, 24  # of prctl
_SEES_ALL = (19, 21, 38)  # CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON: what root has


class _Rules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scope", ctypes.c_uint64)]


class _Path(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def landlock_version() -> int:
    """The kernel's version of Landlock; 0 where it has none."""
    return max(0, ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), 1))


def write_only_in(*places: str) -> bool:
    """Let this process and its children change only these files and what is in these folders.

    Returns whether the kernel can do that.
    """
    version = landlock_version()
    if not version:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = _Rules(rights, 0, _SIGNALS if version >= 6 else 0)
    size = ctypes.sizeof(rules) if version >= 6 else 8  # what an older kernel knows of it
    ruleset = libc.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    for place in places:
        fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
        path = _Path(rights if os.path.isdir(place) else rights & _OF_FILES, fd)
        libc.syscall(_ADD, ruleset, 1, ctypes.byref(path), 0)
        os.close(fd)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for capability in _SEES_ALL:  # from the next program on; with them it could look into others
        libc.prctl(_DROP, capability, 0, 0, 0)
    done = libc.syscall(_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return done


def give_up(folders: list[str], memory_mb: int, file_mb: int) -> None:
    """Confine this process and all that it starts, for ever."""
    memory, file = memory_mb << 20, file_mb << 20
    os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    write_only_in(*folders, "/dev/null")


def main() -> None:
    """Confine this process and run the command in its place."""
    give_up(sys.argv[1].split(":"), int(sys.argv[2]), int(sys.argv[3]))
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606 - in place of this process, no shell


if __name__ == "__main__":
    main()
