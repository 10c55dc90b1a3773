"""Waits: warnings of the stall inspector, fusion's messages, forked children."""

from mpi import launch

START = """
import os, time
import numpy as np
import arrays as hvd
hvd.init()
rank = hvd.rank()
hvd.barrier()
"""


def _stalled(body: str, np: int = 2, **env: str):
    outcome = launch(START + body, np, env=env)
    assert outcome.returncode == 0, outcome
    return [line for line in outcome.stderr.splitlines() if "has waited" in line]


LATE = """
if rank == 1:
    time.sleep(2.2)
hvd.allreduce(np.ones(2), name="loss").wait()
"""


def test_a_late_rank_is_told_at_sane_intervals():
    told = _stalled(LATE, HOROVOD_STALL_CHECK_TIME_SECONDS="0.8")
    assert 1 <= len(told) <= 3
    assert "allreduce 'loss' has waited for 1 s for rank 1: rank 1 is not in a" in told[0]


def test_the_stall_check_can_be_turned_off():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.8", "HOROVOD_STALL_CHECK_DISABLE": "1"}
    assert _stalled(LATE, **env) == []


def test_a_barrier_and_the_lowest_rank_can_be_late_too():
    body = """
if rank == 0:
    time.sleep(2)
hvd.barrier()
"""
    told = _stalled(body, HOROVOD_STALL_CHECK_TIME_SECONDS="0.8")
    assert told and "for rank 0" in told[0]


def test_the_lowest_rank_of_a_process_set_tells():
    body = """
late = hvd.add_process_set([1, 2])
if rank == 2:
    time.sleep(2)
if rank > 0:
    hvd.allreduce(np.ones(2), name="loss", process_set=late).wait()
"""
    told = _stalled(body, 3, HOROVOD_STALL_CHECK_TIME_SECONDS="0.8")
    assert told and "allreduce 'loss' has waited for 1 s for rank 2" in told[0]


def test_of_many_waiting_tensors_a_few_are_named():
    body = """
if rank == 1:
    time.sleep(2)
started = [hvd.allreduce(np.ones(2), name=f"t{i}") for i in range(200)]
for call in started:
    call.wait()
"""
    told = _stalled(body, HOROVOD_STALL_CHECK_TIME_SECONDS="0.8")
    assert "allreduce 't0' (and 199 more: allreduce 't1', allreduce 't2', " in told[0]
    assert len(told[0]) < 300


def test_after_the_shutdown_time_all_ranks_end_with_an_error():
    outcome = launch(
        START + LATE,
        2,
        env={
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1",
        },
    )
    assert outcome.returncode == 1, outcome
    assert "given up after 1 s" in outcome.stderr, outcome


def _one_wait_in_another() -> list[str]:
    """What this rank's note says, after a long wait inside of a longer one."""
    import time

    import arrays as hvd

    from hvdlite import testing
    from hvdlite.waiting.wait import wait_until

    hvd.init()
    group, started, notes = testing.collectives().group, time.monotonic(), []

    def noted() -> str:
        return group.world.status.read(hvd.rank()).text

    def ready() -> bool:
        if noted():
            over = time.monotonic() + 0.3
            wait_until(lambda: time.monotonic() > over, group, "the inner wait", list)
            notes.append(noted())
        return bool(notes) or time.monotonic() > started + 30

    wait_until(ready, group, "the outer wait", list)
    return [*notes, noted()]


def test_a_wait_inside_of_another_leaves_its_note(ranks):
    for during, after in ranks(2).run(_one_wait_in_another):
        assert during.startswith("waits in the outer wait at ") and after == ""


def _a_wait_that_raises() -> str:
    """What this rank's note says after it."""
    import contextlib

    import hvdlite
    from hvdlite import testing
    from hvdlite.waiting.wait import wait_until

    hvdlite.init()
    group = testing.collectives().group

    def ready() -> bool:
        if group.world.status.read(hvdlite.rank()).text:
            raise KeyError
        return False

    with contextlib.suppress(KeyError):
        wait_until(ready, group, "a result", list)
    return group.world.status.read(hvdlite.rank()).text


def test_a_wait_that_raises_leaves_no_note(ranks):
    assert ranks(2).run(_a_wait_that_raises) == ["", ""]


def _commit_that_waits() -> str:
    """What rank 0's note says while it waits in an elastic state for rank 1."""
    import time

    import arrays as hvd

    from hvdlite import basics
    from hvdlite.elastic.state import ObjectState

    hvd.init()
    state = ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, batch=3)
    said, over = "", time.monotonic() + 30
    while hvd.rank() == 1 and not said and time.monotonic() < over:
        said = basics.engine().world.status.read(0).text
    state.sync()
    return said


def test_a_wait_in_an_elastic_state_is_told_with_the_users_line(ranks):
    said = ranks(2).run(_commit_that_waits)[1]
    assert "waits in " in said and f" at {__file__}:" in said, said


def _fusion(threshold: int) -> tuple[int, list[float]]:
    """How many collectives 300 tensors of three dtypes in turn need, and their sums."""
    import os

    import arrays as hvd
    import numpy as np

    from hvdlite import testing

    testing.new_world(HOROVOD_FUSION_THRESHOLD=str(threshold))
    dtypes = [np.float32, np.float64, np.int32]
    arrays = [np.full(10, i, dtypes[i % 3]) for i in range(300)]
    with testing.counted("allreduce", "run_staged") as calls:
        started = [hvd.allreduce(array, op=hvd.Sum) for array in arrays]
        sums = [call.wait()[9].item() for call in started]
    del os.environ["HOROVOD_FUSION_THRESHOLD"]
    hvd.shutdown()
    return len(calls), sums


def test_fusion_makes_few_collectives_of_many_tensors(ranks):
    expected = [2 * i for i in range(300)]
    for threshold, most in ((64 << 20, 3), (1 << 40, 3), (1000, 40), (0, 300)):
        for calls, sums in ranks(2).run(_fusion, threshold):
            assert sums == expected
            assert calls <= most
    assert calls == 300  # threshold 0: none together


def test_a_forked_child_makes_no_collective_and_ends_alone():
    outcome = launch(
        START
        + """
child = os.fork()
if child == 0:
    try:
        hvd.allreduce(np.ones(2)).wait()
    except hvd.HorovodInternalError as error:
        print("refused:", error, flush=True)
    raise SystemExit(7)
_, code = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(code), flush=True)
print("sum", hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0].item(), flush=True)
""",
        2,
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("only the rank itself can make collective calls") == 2
    assert outcome.stdout.count("child 7") == 2 and outcome.stdout.count("sum 2.0") == 2
