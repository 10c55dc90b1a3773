"""Groups that overlap, and ranks that leave while others still finish."""

from mpi import launch


def test_ranks_in_two_groups_begin_in_different_orders():
    outcome = launch(
        """
import time
import numpy as np
import arrays as hvd
hvd.init()
rank = hvd.rank()
pair = hvd.add_process_set([0, 1])
for step in range(20):
    large = np.ones(200_000, np.float32)
    calls = {
        "world": lambda: hvd.allreduce(large, op=hvd.Sum, name="world"),
        "pair": lambda: hvd.allreduce(large, op=hvd.Sum, name="pair", process_set=pair),
    }
    order = ["world", "pair"] if (rank + step) % 2 else ["pair", "world"]
    if rank == 2:
        time.sleep(0.002 * (step % 3))
        order = ["world"]
    handles = {name: calls[name]() for name in order}
    for name in sorted(handles, reverse=bool(step % 2)):
        total = 3 if name == "world" else 2
        assert handles[name].wait()[-1] == total, (name, step)
print("finished", flush=True)
""",
        3,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("finished") == 3


def test_a_rank_may_leave_while_others_finish_the_last_call():
    for algorithm in ("mpi", "ring", "ps", "shm"):
        outcome = launch(
            """
import numpy as np
import arrays as hvd
for _ in range(5):
    hvd.init()
    hvd.allreduce(np.ones(500_000, np.float32)).wait()
    hvd.broadcast(np.ones(500_000, np.float32), 1).wait()
    hvd.barrier()
    hvd.shutdown()
print("finished", flush=True)
""",
            3,
            env={"HVDLITE_ALLREDUCE": algorithm},
        )
        assert outcome.returncode == 0, (algorithm, outcome)
        assert outcome.stdout.count("finished") == 3


def test_an_error_ends_ranks_on_other_hosts_that_never_ask():
    outcome = launch(
        """
import time
import numpy as np
import arrays as hvd
hvd.init()
hvd.allreduce(np.ones(2)).wait()
if hvd.rank() == 1:
    raise KeyError("no such layer")
while True:
    time.sleep(1)
""",
        2,
        env={"HVDLITE_RANKS_PER_HOST": "1"},
    )
    assert outcome.returncode == 1, outcome
    assert "no such layer" in outcome.stderr


def test_an_interrupt_while_an_idle_group_is_looked_at_is_an_interrupt():
    outcome = launch(
        """
import numpy as np
import arrays as hvd
from hvdlite import testing
hvd.init()
hvd.add_process_set([0, 1])

try:
    if hvd.rank() == 0:
        testing.interrupt_progress(1)  # where the signal arrives
    hvd.allreduce(np.ones(2), name="stuck" if hvd.rank() == 0 else "other").wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
except hvd.HorovodInternalError as error:
    print("told:", error, flush=True)
hvd.shutdown()
hvd.init()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0] == 3
""",
        3,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("interrupted\n") == 1, outcome
    assert outcome.stdout.count("told: rank 0 was interrupted in allreduce 'stuck'") == 2, outcome


def test_the_first_interrupt_ends_the_wait_in_two_groups():
    outcome = launch(
        """
import os, signal, sys, threading, time
import numpy as np
import arrays as hvd
from hvdlite import testing
hvd.init()
pair = hvd.add_process_set([0, 1])
ones = np.ones(1_000_000, np.float32)

def both():
    started = [
        hvd.allreduce(ones, name="world"),
        hvd.allreduce(ones, name="pair", process_set=pair),
    ]
    for call in started:
        call.wait()

if hvd.rank() == 1:
    with testing.slow_rank(600):
        both()
if hvd.rank() == 0:
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        both()
    except KeyboardInterrupt:
        sys.exit(3)
try:
    hvd.allreduce(ones, name="world").wait()
except hvd.HorovodInternalError:
    time.sleep(600)  # it is rank 0 that ends the job
""",
        3,
        timeout=60,
    )
    assert outcome.returncode == 3, outcome
