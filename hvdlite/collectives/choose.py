"""Which algorithms a group uses."""

from hvdlite.collectives.hierarchical import HierarchicalCollectives
from hvdlite.collectives.interface import Collectives
from hvdlite.collectives.mpi import MPICollectives
from hvdlite.collectives.parameter_server import ParameterServerCollectives
from hvdlite.collectives.ring import RingCollectives
from hvdlite.collectives.shm import SharedMemoryCollectives
from hvdlite.runtime.groups import Group

# Those that work for every group, so that the one asked for is the one that is used.
_ANYWHERE = {
    kind.name: kind
    for kind in (
        MPICollectives,
        RingCollectives,
        ParameterServerCollectives,
        HierarchicalCollectives,
    )
}
# What HVDLITE_ALLREDUCE may say.
NAMES = ("auto", SharedMemoryCollectives.name, *_ANYWHERE)


def check_name(name: str) -> None:
    """Raise ValueError unless there is an algorithm of that name."""
    if name not in NAMES:
        raise ValueError(f"HVDLITE_ALLREDUCE={name!r}: choose one of {', '.join(NAMES)}")


def choose(group: Group) -> Collectives:
    """The algorithms that HVDLITE_ALLREDUCE asks for, or the fastest that this group can have.

    All ranks of the group must call it together.
    """
    if kind := _ANYWHERE.get(group.world.settings.allreduce):
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
