"""Ranks that don't do the same: a clear error on each of them, and life after it."""

import pytest

HERE = "test_mismatch.py"


def _differ(what: str) -> tuple[str, str, float]:
    import arrays as hvd
    import numpy as np

    hvd.init()
    rank = hvd.rank()
    tensor = np.ones(3)
    options = {"op": hvd.Sum}
    if rank == 1:
        if what == "shape":
            tensor = np.ones(4)
        elif what == "dtype":
            tensor = np.ones(3, dtype=np.int32)
        elif what == "op":
            options = {"op": hvd.Average}
        elif what == "scale":
            options = {"op": hvd.Sum, "prescale": 2.0}
    try:
        hvd.allreduce(tensor, name="weights", **options).wait()
        message = ""
    except hvd.HorovodInternalError as error:
        message = str(error)
    # The ranks are still in step: go on at once, and after a new start.
    sums = [hvd.allreduce(np.ones(2), op=hvd.Sum).wait().tolist()]
    hvd.shutdown()
    hvd.init()
    sums.append(hvd.allreduce(np.ones(2), op=hvd.Sum).wait().tolist())
    return message, sums


@pytest.mark.parametrize("what", ["shape", "dtype", "op", "scale"])
@pytest.mark.parametrize("np", [2, 3])
def test_a_difference_is_the_same_error_everywhere(ranks, what, np):
    results = ranks(np).run(_differ, what)
    messages = {message for message, _ in results}
    assert len(messages) == 1
    message = messages.pop()
    assert "allreduce 'weights'" in message and "on rank 1" in message
    for _, sums in results:
        assert sums == [[np, np]] * 2


def _root_differs() -> str:
    import arrays as hvd
    import numpy as np

    hvd.init()
    try:
        hvd.broadcast(np.ones(2), hvd.rank(), name="w").wait()
    except hvd.HorovodInternalError as error:
        return str(error)
    return ""


def test_different_roots_are_told(ranks):
    one, two = ranks(2).run(_root_differs)
    assert one == two
    assert "broadcast 'w'" in one and "root rank: 0 on rank 0, 1 on rank 1" in one


def _one_never_comes() -> tuple[str, list[float]]:
    import os
    import time

    import arrays as hvd
    import numpy as np

    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "1.5"
    hvd.shutdown()
    hvd.init()
    message = ""
    try:
        if hvd.rank() == 0:
            hvd.allreduce(np.ones(2), name="lonely").wait()
        else:
            time.sleep(2.5)
            hvd.allreduce(np.ones(2), name="later").wait()
    except hvd.HorovodInternalError as error:
        message = str(error)
    del os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]
    hvd.shutdown()
    hvd.init()
    return message, hvd.allreduce(np.ones(2), op=hvd.Sum).wait().tolist()


def test_a_rank_that_never_comes_ends_the_wait_on_all(ranks):
    (one, sum_one), (two, sum_two) = ranks(2).run(_one_never_comes)
    for message in (one, two):
        assert "allreduce 'lonely' has waited for" in message and "for rank 1" in message
        assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in message
    assert sum_one == sum_two == [2, 2]


def _wait_in_different_calls() -> str:
    import os

    import arrays as hvd
    import numpy as np

    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "1.5"
    hvd.shutdown()
    hvd.init()
    message = ""
    try:
        if hvd.rank() == 0:
            hvd.allreduce(np.ones(2), name="of zero").wait()
        else:
            hvd.broadcast(np.ones(2), 0, name="of one").wait()
    except hvd.HorovodInternalError as error:
        message = str(error)
    del os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]
    hvd.shutdown()
    hvd.init()
    return message


def test_a_deadlock_tells_who_waits_where(ranks):
    one, two = ranks(2).run(_wait_in_different_calls)
    # One of the two gives up first, and both say the same of it.
    assert "waits in" in one and HERE in one
    assert "allreduce 'of zero'" in one and "broadcast 'of one'" in one
    assert "allreduce 'of zero'" in two and "broadcast 'of one'" in two


def _different_orders() -> list[float]:
    import arrays as hvd
    import numpy as np

    hvd.init()
    names = ["a", "b", "c", "d"]
    if hvd.rank() == 1:
        names.reverse()
    handles = {
        name: hvd.allreduce(np.full((2,), float(ord(name))), name=name, op=hvd.Sum)
        for name in names
    }
    if hvd.rank() == 1:
        return [handles[name].wait()[0].item() for name in sorted(names)]
    return [handle.wait()[0].item() for handle in handles.values()]


def test_ranks_may_submit_in_different_orders(ranks):
    one, two = ranks(2).run(_different_orders)
    assert one == two == [2.0 * ord(name) for name in "abcd"]


def _duplicate_names() -> str:
    import arrays as hvd
    import numpy as np

    hvd.init()
    handle = hvd.allreduce(np.ones(2), name="twice")
    try:
        hvd.allreduce(np.ones(2), name="twice")
        message = ""
    except ValueError as error:
        message = str(error)
    handle.wait()
    hvd.allreduce(np.ones(2), name="twice").wait()  # free again
    return message


def test_a_name_in_flight_is_refused(ranks):
    for message in ranks(2).run(_duplicate_names):
        assert "allreduce 'twice'" in message and "still under way" in message


def _no_numbers(op: int) -> tuple[list[str], float]:
    """What rank 1 alone is told of arrays that are no numbers, and a call of both after that."""
    import arrays as hvd
    import numpy as np

    hvd.init()
    told = []
    arrays = [
        np.array([object(), {}], dtype=object),
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, [("x", "f4")]),
    ]
    kinds = [
        lambda array: hvd.allreduce(array, op=op),
        hvd.allgather,
        lambda array: hvd.broadcast(array, 0),
        hvd.alltoall,
        lambda array: hvd.reducescatter(array, op=op),
    ]
    for array in arrays if hvd.rank() == 1 else ():
        for call in kinds:
            try:
                call(array)
                told.append("")
            except TypeError as error:
                told.append(str(error))
    return told, hvd.allreduce(np.ones(2), op=hvd.Sum).wait()[0].item()


@pytest.mark.parametrize("op", [0, 1, 3], ids=["Average", "Sum", "Min"])
def test_what_is_no_number_is_an_error_of_that_call_alone(ranks, op):
    (none, first), (told, second) = ranks(2).run(_no_numbers, op)
    assert none == [] and first == second == 2
    assert len(told) == 25
    for message in told:
        assert message.startswith("collectives take tensors of numbers, not of dtype "), told
