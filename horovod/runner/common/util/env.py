"""Horovod's module of that name: what the launcher has told a process."""

import os

from hvdlite.runtime.launchers import launchers_of_many, rank_of

__all__ = ["get_env_rank_and_size"]


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks; 0 and 1 without a launcher."""
    counts = [count for _, count in launchers_of_many(os.environ)]
    return (rank_of(os.environ), counts[0]) if counts else (0, 1)
