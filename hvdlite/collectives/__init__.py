"""How bytes move: one file, one algorithm, all with the interface of `MPICollectives`."""

from hvdlite.collectives.hierarchical import HierarchicalCollectives
from hvdlite.collectives.mpi import MPICollectives
from hvdlite.collectives.parameter_server import ParameterServerCollectives
from hvdlite.collectives.ring import RingCollectives
from hvdlite.collectives.shm import SharedMemoryCollectives
from hvdlite.groups import Group

# Those that work for every group, so that the one asked for is the one that is used.
_ANYWHERE = [MPICollectives, RingCollectives, ParameterServerCollectives, HierarchicalCollectives]


def choose(group: Group) -> MPICollectives:
    """The algorithms that HVDLITE_ALLREDUCE asks for, or the fastest that this group can have.

    All ranks of the group must call it together.
    """
    for kind in _ANYWHERE:
        if kind.name == group.world.settings.allreduce:
            return kind(group)
    if shared := SharedMemoryCollectives.create(group):
        return shared
    if 1 < len(group.hosts) < group.size:
        return HierarchicalCollectives(group)
    if len(group.hosts) == 1:
        group.world.warn_once(
            "shared memory can't be had here (see docs/architecture.md), so the ranks exchange "
            "messages instead, which is slower"
        )
    return MPICollectives(group)
