"""How bytes move: one file, one algorithm, all with the interface of `base.Collectives`."""

from hvdlite.collectives.base import Collectives
from hvdlite.collectives.mpi import MPICollectives
from hvdlite.collectives.ring import RingCollectives
from hvdlite.collectives.shm import SharedMemoryCollectives
from hvdlite.groups import Group

__all__ = ["Collectives", "choose"]


def choose(group: Group) -> Collectives:
    """The algorithms that HVDLITE_ALLREDUCE asks for, or the fastest that this group can have.

    All ranks of the group must call it together.
    """
    algorithm = group.world.settings.allreduce
    if algorithm == "ring":
        return RingCollectives(group)
    if algorithm != "mpi" and group.shared:
        shared = SharedMemoryCollectives.create(group)
        if shared is not None:
            return shared
    if algorithm in ("auto", "shm") and set(group.ranks) <= set(group.world.host_ranks):
        group.world.warn_once(
            "shared memory can't be had here (see docs/architecture.md), so the ranks exchange "
            "messages instead, which is slower"
        )
    return MPICollectives(group)
