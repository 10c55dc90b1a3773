"""Start, end, and "who am I": the functions that every binding offers."""

import contextlib
import importlib.util
import itertools
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from hvdlite.collectives.choose import check_name
from hvdlite.engine.engine import Engine
from hvdlite.engine.timeline import Timeline
from hvdlite.exceptions import HorovodInternalError, NotInitializedError
from hvdlite.process_sets import ProcessSet, as_process_set, global_process_set
from hvdlite.runtime import ends, launchers
from hvdlite.runtime.groups import tidy_up
from hvdlite.runtime.settings import Settings
from hvdlite.runtime.world import World, connect
from hvdlite.waiting import status
from hvdlite.waiting.signals import undisturbed

if TYPE_CHECKING:
    from mpi4py import MPI


class _State:
    engine: Engine | None = None
    process_sets: dict[int, ProcessSet] = {}
    next_set = 1
    is_child = False  # of the process that called `init`
    comm: Any = None  # what `init` was given
    lock = threading.RLock()


os.register_at_fork(after_in_child=lambda: setattr(_State, "is_child", True))


def init(
    comm: Union[Sequence[int], "MPI.Comm", None] = None,
    process_sets: Sequence[ProcessSet] | None = None,
) -> None:
    """Find the other ranks; every rank must call it. A second call does nothing.

    `comm` narrows the world to these ranks of MPI.COMM_WORLD or to that communicator.
    `process_sets` are taken into use, with those that other ranks name.
    After an error that left the ranks out of step, `init()` starts afresh.
    Raises HorovodInternalError where the launcher's and MPI's number of processes differ.
    """
    with _State.lock:
        if is_initialized() and _State.engine.broken is None:
            if process_sets is not None:
                _agree_on_process_sets(process_sets)
            return
        shutdown()
        settings = Settings()
        check_name(settings.allreduce)
        if launchers.ELASTIC in os.environ:  # horovodrun minds that all ranks come
            ends.tell_launcher(f"here {launchers.rank_of(os.environ)}")
        world = connect(settings, comm)
        try:
            with undisturbed():
                if comm is None:  # all ranks of the last world are here
                    tidy_up()
                _State.engine = Engine(world)
        except BaseException:
            _State.engine = None
            world.status.break_off("was interrupted in init()")
            raise
        ends.watch()
        _State.is_child, _State.comm = False, comm
        _register(0, global_process_set, list(range(world.size)))
        _State.next_set = 1
        global_process_set.mpi_comm = comm if hasattr(comm, "Get_group") else None
        if process_sets is not None:
            _agree_on_process_sets(process_sets)
        if world.settings.timeline:
            start_timeline(world.settings.timeline, world.settings.timeline_mark_cycles)


def shutdown() -> None:
    """Leave the world. Ranks that still wait for this one get an error instead."""
    with _State.lock:
        if not is_initialized():
            return
        stop_timeline()
        _State.engine.world.status.write(status.LEFT, "has called shutdown()")
        for process_set in _State.process_sets.values():
            process_set._forget()
        _State.process_sets = {}
        _State.engine.close("hvdlite was shut down; call hvd.init() again")
        _State.engine = None


def is_initialized() -> bool:
    """Whether `init()` has been called, and `shutdown()` not since."""
    return _State.engine is not None


def engine() -> Engine:
    """The running engine; raises ValueError before `init()`."""
    if _State.engine is None:
        raise NotInitializedError
    if _State.is_child:
        raise HorovodInternalError(
            "a collective was called in a process that was forked from a rank (a DataLoader "
            "worker, say); only the rank itself can make collective calls"
        )
    return _State.engine


def _world() -> World:
    if _State.engine is None:
        raise NotInitializedError
    return _State.engine.world


def size() -> int:
    """The number of ranks."""
    return _world().size


def rank() -> int:
    """This process's number among all ranks, from 0."""
    return _world().rank


def local_size() -> int:
    """The number of ranks on this host."""
    return _world().local_size


def local_rank() -> int:
    """This process's number among the ranks of its host: the GPU to use."""
    return _world().local_rank


def cross_size() -> int:
    """The number of hosts that have a rank with this local_rank."""
    return _world().cross_size


def cross_rank() -> int:
    """The number of this host among those that have a rank with this local_rank."""
    return _world().cross_rank


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return _world().is_homogeneous


# Process sets


def _register(number: int, process_set: ProcessSet, ranks: list[int]) -> None:
    process_set.ranks = ranks
    process_set._register(number, rank())
    _State.process_sets[number] = process_set


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Take a process set into use; all ranks of the world must call it in the same order.

    Raises ValueError for ranks that don't exist, that repeat, or that have such a set already.
    """
    process_set = as_process_set(process_set)
    ranks, current = sorted(process_set.ranks), engine()
    if not ranks or len(set(ranks)) < len(ranks) or not 0 <= ranks[0] <= ranks[-1] < size():
        raise ValueError(
            f"{process_set}: the ranks must be different numbers from 0 to {size() - 1}"
        )
    for known in _State.process_sets.values():
        if known.ranks == ranks:
            raise ValueError(f"a process set with ranks {ranks} exists already: {known}")
    number, _State.next_set = _State.next_set, _State.next_set + 1
    current.call("add_process_set", shapes=(tuple(ranks),))  # all must give the same
    if rank() in ranks:
        comm = None
        if len(ranks) > 1:
            comm = current.world.comm
            comm = comm.Create_group(comm.Get_group().Incl(ranks), tag=number)
        current.add_group(number, comm, ranks)
    _register(number, process_set, ranks)
    return process_set


def _agree_on_process_sets(process_sets: Sequence[ProcessSet | Sequence[int]]) -> None:
    """Take the process sets of all ranks into use; ValueError where this rank's repeat."""
    wanted = [as_process_set(item) for item in process_sets]
    lists = [sorted(process_set.ranks) for process_set in wanted]
    distinct = len({tuple(ranks) for ranks in [*lists, range(size())]}) == len(lists) + 1
    told = lists, distinct
    gathered = engine().call("exchange", "init.process_sets", payload=told).result
    if not distinct:
        raise ValueError(f"init: these process sets repeat each other or the world: {lists}")
    if not all(good for _, good in gathered):
        return  # the ranks whose list was refused will call init() with another
    for same_place in itertools.zip_longest(*(lists for lists, _ in gathered)):
        for ranks in same_place:
            if ranks is not None and ranks not in process_set_ranks().values():
                add_process_set(ranks)
    numbers = {tuple(ranks): number for number, ranks in process_set_ranks().items()}
    for process_set, ranks in zip(wanted, lists, strict=True):
        _register(numbers[tuple(ranks)], process_set, ranks)


def process_set_ranks() -> dict[int, list[int]]:
    """The ranks of each process set in use, by its process_set_id."""
    engine()
    return {number: process_set.ranks for number, process_set in _State.process_sets.items()}


def process_set_of(number: int) -> ProcessSet:
    """The process set in use with this process_set_id; ValueError if there is none."""
    engine()
    if number not in _State.process_sets:
        raise ValueError(f"there is no process set with process_set_id={number}")
    return _State.process_sets[number]


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take a process set out of use; all ranks of the world must call it.

    Returns False for a set that is not in use, and for the global one, which stays.
    """
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    engine().call("remove_process_set", shapes=((number,),))  # all must give the same
    tidy_up()
    engine().remove_group(number)
    del _State.process_sets[number]
    process_set._forget()
    return True


def check_process_set(process_set: ProcessSet) -> None:
    """Raise TypeError for what is no process set, ValueError for one that is not in use."""
    engine()
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set must be a hvd.ProcessSet that add_process_set() has taken into use, not "
            f"{process_set!r}"
        )
    process_set._check()


def process_set_number(process_set: ProcessSet) -> int:
    """The engine's number of a set; ValueError unless this rank is in it."""
    check_process_set(process_set)
    process_set.rank()
    return process_set.process_set_id


# Timeline


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write the timeline of all collectives from now on to a file; only rank 0 does.

    A file that can't be written is told of on stderr, and the program goes on.
    """
    stop_timeline()
    if rank() == 0:
        timeline = Timeline(file_path, mark_cycles)
        engine().timeline = timeline if timeline.active else None


def stop_timeline() -> None:
    """Close the timeline's file; does nothing if there is none."""
    timeline, engine().timeline = engine().timeline, None
    if timeline is not None:
        timeline.stop()


# What this installation can do


def mpi_built() -> bool:
    """Whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


mpi_enabled = mpi_built  # the ranks talk through MPI whenever there are several


def mpi_threads_supported() -> bool:
    """Whether MPI was started so that several threads may call it."""
    world = _world()
    if world.comm is None:
        return mpi_built()
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def nccl_built() -> int:
    """NCCL's version code if CuPy brings it, else 0."""
    with contextlib.suppress(ImportError):
        from cupy.cuda import nccl

        return int(nccl.get_version())
    return 0


def cuda_built() -> bool:
    """Whether CuPy, through which GPUs are used, is installed."""
    return importlib.util.find_spec("cupy") is not None


def _not_built() -> bool:
    """False: Gloo, IBM's DDL, Intel's oneCCL and AMD's GPUs are not served."""
    return False


gloo_built = gloo_enabled = ddl_built = ccl_built = rocm_built = _not_built
