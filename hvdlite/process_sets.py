"""Process sets: parts of the world that make collectives of their own."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from mpi4py import MPI


class ProcessSet:
    """Some ranks of the world. Made from their numbers or from an mpi4py communicator.

    Usable after `init(process_sets=[...])` or `add_process_set`.
    """

    def __init__(self, ranks_or_comm: Union[Sequence[int], "MPI.Comm"]):
        self.process_set_id: int | None = None
        self._world_rank: int | None = None
        self.mpi_comm: MPI.Comm | None = None  # the communicator that it was made from
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            self.ranks: list[int] | None = _world_ranks(ranks_or_comm)
        else:
            self.ranks = sorted(int(rank) for rank in ranks_or_comm)

    def _register(self, number: int, world_rank: int) -> None:
        self.process_set_id = number
        self._world_rank = world_rank

    def _forget(self) -> None:
        self.process_set_id = self._world_rank = None

    def _check(self) -> None:
        if self.process_set_id is None:
            raise ValueError(
                f"{self} is not in use: call hvd.init() or hvd.add_process_set() first"
            )

    def size(self) -> int:
        """The number of ranks in the set."""
        self._check()
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this rank is in the set."""
        self._check()
        return self._world_rank in self.ranks

    def rank(self) -> int:
        """This rank's place in the set; ValueError if it is not in it."""
        if not self.included():
            raise ValueError(
                f"rank {self._world_rank} is not in {self} and so can't take part in its "
                "collectives; call them under `if process_set.included():`"
            )
        return self.ranks.index(self._world_rank)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProcessSet)
            and self.process_set_id == other.process_set_id
            and self.ranks == other.ranks
        )

    def __hash__(self) -> int:
        return hash(self.process_set_id)  # both change when the set is taken into or out of use

    def __repr__(self) -> str:
        told = f"process_set_id={self.process_set_id}, ranks={self.ranks}"
        return f"ProcessSet({told}, mpi_comm={self.mpi_comm})"  # as Horovod writes it


def _world_ranks(comm: "MPI.Comm") -> list[int]:
    """The numbers in MPI.COMM_WORLD of a communicator's ranks."""
    from mpi4py import MPI

    everybody = MPI.COMM_WORLD.Get_group()
    return [int(rank) for rank in comm.Get_group().Translate_ranks(None, everybody)]


global_process_set = ProcessSet([])


def as_process_set(item: ProcessSet | Iterable[int]) -> ProcessSet:
    """A ProcessSet from what users pass for one."""
    return item if isinstance(item, ProcessSet) else ProcessSet(item)
