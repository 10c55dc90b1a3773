"""What a world leaves behind, and what ranks that come, go and are interrupted do to each other."""

from mpi import launch
from twin import restore


def test_init_may_be_interrupted_while_the_others_are_away():
    outcome = launch(
        """
import os, signal, threading, time
import numpy as np
from mpi4py import MPI
import arrays as hvd

def interrupted(after):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        hvd.init()
    except KeyboardInterrupt:
        return True
    return False

for first in (True, False):  # the first init() of a process, and a later one
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        assert interrupted(0.5) and interrupted(0.3)
    else:
        time.sleep(2)
    hvd.init()
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0] == hvd.size()
    hvd.shutdown()
print("finished", flush=True)
""",
        3,
        timeout=60,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("finished") == 3


def test_many_worlds_and_process_sets_leave_nothing_behind():
    outcome = launch(
        """
import gc, os, weakref
import numpy as np
from mpi4py import MPI
import arrays as hvd
from hvdlite import basics

def number():  # of the next communicator
    comm = MPI.COMM_WORLD.Dup()
    found = comm.py2f()
    comm.Free()
    return found

def mapped():
    with open("/proc/self/maps") as maps:
        return sum("memfd:hvdlite" in line for line in maps)

def cycle():
    hvd.init(process_sets=[[0, 1]])
    extra = hvd.add_process_set([1, 2])
    hvd.allreduce(np.ones(70_000, np.float32)).wait()
    if extra.included():
        hvd.allreduce(np.ones(2), process_set=extra).wait()
    hvd.remove_process_set(extra)
    engine = weakref.ref(basics.engine())
    hvd.shutdown()
    return engine

for _ in range(3):
    engine = cycle()
gc.collect()
before, maps = number(), mapped()
for _ in range(20):
    engine = cycle()
gc.collect()
assert engine() is None
assert number() - before < 5, (before, number())
assert mapped() <= maps
print("finished", flush=True)
""",
        3,
        timeout=120,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("finished") == 3


def test_interrupted_worlds_leave_no_memory_behind():
    outcome = launch(
        """
import gc, os, signal, threading, weakref
import numpy as np
import arrays as hvd
from hvdlite import basics

engines = []
for i in range(4):
    hvd.init()
    assert hvd.allreduce(np.ones(100_000, np.float32), op=hvd.Sum).wait()[0] == 2
    if hvd.rank() == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        hvd.allreduce(np.ones(2), name=f"never {hvd.rank()}").wait()
    except (KeyboardInterrupt, hvd.HorovodInternalError):
        engines.append(weakref.ref(basics.engine()))
    hvd.shutdown()
hvd.init()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0] == 2
gc.collect()
assert [engine() for engine in engines] == [None] * 4
print("finished", flush=True)
""",
        2,
        timeout=60,
        env={"HVDLITE_RANKS_PER_HOST": "1"},
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("finished") == 2


def test_notes_do_not_pile_up_at_a_rank_that_comes_last():
    outcome = launch(
        """
import time
import numpy as np
import arrays as hvd
from hvdlite import basics

hvd.init()
for _ in range(20):
    if hvd.rank() == 1:
        time.sleep(0.25)
    hvd.allreduce(np.ones(2)).wait()
if hvd.rank() == 1:
    time.sleep(0.25)
    status, unread = basics.engine().world.status, 0
    while status._comm.improbe(tag=1) is not None:
        unread += 1
    print("unread", unread, flush=True)
hvd.barrier()
""",
        2,
        timeout=60,
        env={"HVDLITE_RANKS_PER_HOST": "1"},
    )
    assert outcome.returncode == 0, outcome
    assert int(outcome.stdout.split("unread ")[1]) <= 4, outcome


def test_a_rank_that_has_had_its_part_may_end_while_others_finish():
    """Rank 2 is away for longer than a lost rank is waited for."""
    outcome = launch(
        """
import time
import numpy as np
import arrays as hvd

hvd.init()
hvd.barrier()
if hvd.rank() != 2:
    time.sleep(0.5)  # so that rank 2 is gone before the broadcast begins
handle = hvd.broadcast(np.ones(2_000_000, np.float32), 0, name="large")
if hvd.rank() == 2:
    handle.poll()
    time.sleep(3)
assert handle.wait()[-1] == 1
print("finished", flush=True)
""",
        3,
        timeout=60,
        env={"HVDLITE_ALLREDUCE": "mpi"},
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("finished") == 3


def test_on_several_hosts_one_rank_tells_of_a_stall_and_blames_who_is_late():
    outcome = launch(
        """
import time
import numpy as np
import arrays as hvd

hvd.init()
hvd.barrier()
if hvd.rank() == 2:
    time.sleep(2.5)
hvd.allreduce(np.ones(2), name="loss").wait()
""",
        3,
        timeout=60,
        env={"HVDLITE_RANKS_PER_HOST": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "2"},
    )
    assert outcome.returncode == 0, outcome
    told = [line for line in outcome.stderr.splitlines() if "has waited" in line]
    assert len(told) == 1, outcome
    assert "for rank 2: rank 2 is not in a collective call" in told[0]


def test_mpi_that_takes_calls_of_one_thread_only_is_refused():
    outcome = launch(
        """
import mpi4py
mpi4py.rc.thread_level = "single"
import hvdlite as hvd
from hvdlite.exceptions import HorovodInternalError
try:
    hvd.init()
except HorovodInternalError as error:
    print("refused:", error, flush=True)
""",
        2,
    )
    assert outcome.stdout.count("refused: MPI was started so that only one thread") == 2, outcome


def _removed(number: int) -> str:
    import numpy as np

    import hvdlite
    from hvdlite import testing
    from hvdlite.request import Descriptor, Request

    hvdlite.init()
    process_set = hvdlite.add_process_set([0, 1])
    assert hvdlite.remove_process_set(process_set)
    data = (np.ones(2, np.float32),)
    request = Request(Descriptor("allreduce", "x", 1, "float32", ((2,),)), data, data)
    try:
        testing.run(request, set_id=number)
    except ValueError as error:
        return str(error)
    return "no error"


def test_a_process_set_that_is_gone_is_no_world_of_one(ranks):
    for message in ranks(3).run(_removed, 1):
        assert message == "this rank is in no process set with process_set_id=1"


def _interrupted_between() -> tuple[str, float]:
    """Where a signal comes after a call got its number, and before it is under way."""
    import arrays as hvd
    import numpy as np

    from hvdlite import basics

    hvd.init()
    message = ""
    if hvd.rank() == 0:
        engine = basics.engine()

        def interrupted(*args):
            del engine.submit
            raise KeyboardInterrupt

        engine.submit = interrupted
    try:
        for _ in range(2):
            hvd.allreduce(np.ones(2)).wait()
    except KeyboardInterrupt:
        message = "interrupted"
    except hvd.HorovodInternalError as error:
        message = str(error)
    hvd.shutdown()
    hvd.init()
    return message, hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0].item()


def test_an_interrupt_between_the_number_and_the_start_of_a_call_is_told(ranks):
    (one, life), (two, other) = ranks(2).run(_interrupted_between, timeout=60)
    assert one == "interrupted" and "rank 0 was interrupted in allreduce" in two
    assert life == other == 2


def _interrupted_as_mpi_begins() -> list[tuple]:
    """The buffers that are kept for a call of MPI that nobody has the request of."""
    import contextlib

    import hvdlite
    from hvdlite import testing

    hvdlite.init()
    group = testing.collectives().group

    def call(*buffers):
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        group.begin(call, b"sent", b"received")
    kept = [each.buffers for each in group.under_way]
    group.under_way.clear()
    return kept


def test_the_buffers_of_a_call_outlive_an_interrupt_as_it_begins(ranks):
    assert ranks(2).run(_interrupted_as_mpi_begins) == [[(b"sent", b"received")]] * 2


def _removed_amid_a_round() -> tuple[list[bool], str]:
    """Whether what MPI may still write to is there, when a process set is gone with its calls."""
    import gc
    import weakref

    import arrays as hvd
    import numpy as np

    from hvdlite import testing

    testing.new_world(HVDLITE_RANKS_PER_HOST="1")
    pair = hvd.add_process_set([0, 1])
    buffers, said = [], ""
    if hvd.rank() == 0:
        call = hvd.allreduce(np.ones(2), process_set=pair)
        assert not call.poll()  # rank 1 never makes it, so that the round stays open
        under_way = testing.collectives(pair.process_set_id).group.under_way
        buffers = [weakref.ref(array) for each in under_way for array in each.buffers]
        assert buffers
        del under_way
    assert hvd.remove_process_set(pair)
    if hvd.rank() == 0:
        try:
            call.wait()
        except hvd.HorovodInternalError as error:
            said = str(error)
        del call
    gc.collect()
    hvd.barrier()
    return [buffer() is not None for buffer in buffers], said


def test_the_buffers_of_a_round_outlive_its_process_set(ranks):
    three = ranks(3)
    try:
        (kept, said), *_ = three.run(_removed_amid_a_round, timeout=60)
    finally:
        three.run(restore)
    assert kept == [True, True] and said.endswith("its process set was removed")
