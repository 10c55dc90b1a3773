"""Ranks that wait in different calls: told at once where it is certain, and only there."""

import pytest
from mpi import launch

HERE = "test_deadlock.py"


def _wait_in(calls: list[str], names: list) -> tuple[str, list[float]]:
    """Each rank makes its own call; the message that it gets, and whether life goes on."""
    import arrays as hvd
    import numpy as np

    hvd.init()
    kinds = {
        "allreduce": lambda name: hvd.allreduce(np.ones(3), name=name).wait(),
        "allgather": lambda name: hvd.allgather(np.ones(3), name=name).wait(),
        "broadcast": lambda name: hvd.broadcast(np.ones(3), 0, name=name).wait(),
        "object": lambda name: hvd.broadcast_object(3, 0, name=name),
        "barrier": lambda name: hvd.barrier(),
        "join": lambda name: hvd.join(),
    }
    message = ""
    try:
        kinds[calls[hvd.rank()]](names[hvd.rank()])
    except hvd.HorovodInternalError as error:
        message = str(error)
    # Unnamed calls are counted on from the same numbers.
    unnamed = hvd.allreduce(np.ones(2), op=hvd.Sum), hvd.broadcast(np.full(1, 7.0), 0)
    return message, [call.wait()[0].item() for call in unnamed]


@pytest.mark.parametrize(
    "calls",
    [
        ["allreduce", "allgather"],
        ["broadcast", "allreduce"],
        ["object", "barrier"],
        ["allreduce", "allreduce", "broadcast"],
        ["join", "allreduce", "broadcast"],
    ],
)
def test_unnamed_calls_of_different_kinds_are_told_on_every_rank(ranks, calls):
    np = len(calls)
    results = ranks(np).run(_wait_in, calls, [None] * np, timeout=30)
    (message,) = {message for message, _ in results}
    assert message.startswith("deadlock: rank 0 waits in ")
    for rank, kind in enumerate(calls):
        kind = "broadcast_object" if kind == "object" else kind
        assert f"rank {rank} waits in {kind} 'noname." in message, message
    assert message.count(f"{HERE}:") == np
    assert [life for _, life in results] == [[np, 7]] * np


def test_different_names_are_told_too(ranks):
    results = ranks(2).run(_wait_in, ["allreduce"] * 2, ["one", "two"], timeout=30)
    (message,) = {message for message, _ in results}
    assert "rank 0 waits in allreduce 'one' at" in message
    assert "rank 1 waits in allreduce 'two' at" in message


@pytest.mark.parametrize("np", [2, 3])
def test_one_name_for_different_calls_is_told_at_once(ranks, np):
    calls = ["allreduce"] * (np - 1) + ["allgather"]
    results = ranks(np).run(_wait_in, calls, ["x"] * np, timeout=30)
    (message,) = {message for message, _ in results}
    assert message.startswith("allreduce 'x': the ranks disagree on the operation: allreduce Aver")
    assert f"allgather on rank {np - 1}." in message
    assert [life for _, life in results] == [[np, 7]] * np


def _late(how: str) -> list[float]:
    """Rank 1 waits for b while rank 0 has only asked for a; but it will ask for b, too."""
    import threading
    import time

    import arrays as hvd
    import numpy as np

    hvd.init()
    hvd.barrier()

    def start(name: str) -> int:
        return hvd.allreduce(np.full((2,), float(ord(name))), name=name, op=hvd.Sum)

    if hvd.rank() == 1:
        names = ("b", "c", "a") if how == "another thread" else ("b", "a")
        return [start(name).wait()[0].item() for name in names]
    late = []
    if how == "another thread":
        known = threading.Event()

        def other() -> None:
            late.append(start("c"))  # so that it counts as a thread that makes calls
            known.set()
            time.sleep(2.5)
            late.append(start("b"))

        thread = threading.Thread(target=other)
        thread.start()
        known.wait()
        result = start("a").wait()[0].item()
        thread.join()
        return [call.wait()[0].item() for call in reversed(late)] + [result]
    call = start("a")
    over = time.monotonic() + 2.5
    call.poll()
    if how == "computes":
        time.sleep(2.5)
    while time.monotonic() < over:
        call.poll()
    return [start("b").wait()[0].item(), call.wait()[0].item()]


@pytest.mark.parametrize("how", ["computes", "polls"])
def test_a_call_that_still_comes_is_waited_for(ranks, how):
    assert ranks(2).run(_late, how, timeout=60) == [[196, 194]] * 2


def test_a_call_of_another_thread_is_waited_for(ranks):
    assert ranks(2).run(_late, "another thread", timeout=60) == [[196, 198, 194]] * 2


def _overlapping_sets() -> list[float]:
    """Rank 1 waits in another process set, which goes on later than the world's calls."""
    import time

    import arrays as hvd
    import numpy as np

    hvd.init()
    pair = hvd.add_process_set([1, 2])
    done = []
    if hvd.rank() > 0:
        if hvd.rank() == 2:
            time.sleep(2.5)
        done += hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=pair).wait().tolist()
    done += hvd.allreduce(np.ones(1), name="world", op=hvd.Sum).wait().tolist()
    hvd.remove_process_set(pair)
    return done


def test_a_wait_in_another_process_set_is_none_of_this_one(ranks):
    assert ranks(3).run(_overlapping_sets, timeout=60) == [[3], [2, 3], [2, 3]]


def test_a_thread_that_has_made_no_call_yet_may_still_make_it():
    """The main thread loads data, or computes, while another one waits in a call of its own."""
    outcome = launch(
        """
import threading, time
import numpy as np
import arrays as hvd

hvd.init()
ones = np.ones(2)
for collective, name in ((hvd.allreduce, "beat"), (hvd.allgather, "loss")):
    shared = "loss" if name == "loss" else "start"
    thread = threading.Thread(target=lambda: collective(ones, name=name).wait())
    if hvd.rank() == 1:
        thread.start()
        time.sleep(3)
        hvd.allreduce(ones, name=shared).wait()
    else:
        hvd.allreduce(ones, name=shared).wait()
        thread.start()
    thread.join()
print("all went well", flush=True)
""",
        2,
        timeout=60,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("all went well") == 2 and "deadlock" not in outcome.stderr, outcome


def test_a_rank_that_has_left_stays_so_when_a_wait_of_its_threads_ends():
    outcome = launch(
        """
import threading, time
import numpy as np
import arrays as hvd

hvd.init()
ones = np.ones(2)
hvd.allreduce(ones, name="warm").wait()

def lonely():
    try:
        hvd.allreduce(ones, name="a").wait()
    except hvd.HorovodInternalError:
        pass

if hvd.rank() == 0:
    thread = threading.Thread(target=lonely)
    thread.start()
    time.sleep(1)
    hvd.shutdown()
    thread.join()
    time.sleep(5)
    print("0 goes on", time.time(), flush=True)
else:
    try:
        hvd.allreduce(ones, name="b").wait()
    except hvd.HorovodInternalError as error:
        print("1 learns it", time.time(), error, flush=True)
""",
        2,
        timeout=60,
    )
    assert outcome.returncode == 0, outcome
    learnt, went_on = (
        float(outcome.stdout.split(words)[1].split()[0]) for words in ("1 learns it", "0 goes on")
    )
    assert learnt < went_on and "rank 0 has called shutdown()" in outcome.stdout, outcome
