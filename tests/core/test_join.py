"""Ranks that have joined: what goes on without them, and that they change no result."""

import pytest

OPS = ["Sum", "Average", "Min", "Max", "Product", "Adasum"]


def _reduce_with_a_joined_rank(dtype: str, scale: float) -> dict[str, list]:
    """What rank 0 alone gets of each reduction while the others have joined."""
    import numpy as np

    import hvdlite
    from hvdlite import calls, request
    from hvdlite.collectives.reduction import BFLOAT16

    hvdlite.init()
    kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    if hvdlite.rank() > 0:
        calls.join()
        return {}
    values = np.array([3, 5] if kind.kind == "u" else [-3, 5]).astype(kind)
    results = {}
    for number, name in enumerate(request.OP_NAMES):
        if name == "Adasum" and kind.kind in "iu":
            continue
        out = values.copy()
        calls.allreduce([values], [out], op=number, prescale=scale).wait()
        results[name] = out.astype(np.float64).tolist()
    calls.join()
    return results


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float64"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_rank_that_has_joined_changes_no_result(ranks, dtype, scale):
    own, _ = ranks(2).run(_reduce_with_a_joined_rank, dtype, scale)
    values = [scale * x for x in ([3, 5] if dtype == "uint8" else [-3, 5])]
    halves = [float(int(x / 2)) if "int" in dtype else x / 2 for x in values]
    for name, result in own.items():
        assert result == (halves if name == "Average" else values), name


def _bools() -> list:
    import numpy as np

    import hvdlite
    from hvdlite import calls, request

    hvdlite.init()
    results = []
    if hvdlite.rank() == 0:
        for op in (request.MIN, request.MAX, request.PRODUCT):
            out = np.array([True, False])
            calls.allreduce([out], [out], op=op).wait()
            results.append(out.tolist())
    calls.join()
    return results


def test_truth_values_too(ranks):
    assert ranks(2).run(_bools)[0] == [[True, False]] * 3


def _join_with_a_call_pending() -> tuple[list, int]:
    import arrays as hvd
    import numpy as np

    hvd.init()
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce(np.full((2,), 5.0), name="x", op=hvd.Sum)
    last = hvd.join()
    total = handle.wait().tolist() if handle is not None else []
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).wait().tolist() == [hvd.size()] * 2
    return total, last


@pytest.mark.parametrize("np", [2, 3])
def test_a_call_may_be_pending_when_its_rank_joins(ranks, np):
    results = ranks(np).run(_join_with_a_call_pending)
    assert [total for total, _ in results] == [[5, 5]] + [[]] * (np - 1)
    assert len({last for _, last in results}) == 1


def _others(kind: str) -> str:
    import arrays as hvd
    import numpy as np

    hvd.init()
    calls = {
        "broadcast": lambda: hvd.broadcast(np.ones(2), 0).wait(),
        "allgather": lambda: hvd.allgather(np.ones(2)).wait(),
        "alltoall": lambda: hvd.alltoall(np.ones(2)).wait(),
        "reducescatter": lambda: hvd.reducescatter(np.ones(2)).wait(),
        "broadcast_object": lambda: hvd.broadcast_object(1, 0),
        "allgather_object": lambda: hvd.allgather_object(1),
        "add_process_set": lambda: hvd.add_process_set([0]),
    }
    message = ""
    if hvd.rank() == 0:
        try:
            calls[kind]()
        except hvd.HorovodInternalError as error:
            message = str(error)
    hvd.join()
    hvd.shutdown()  # the process sets' numbers differ now
    return message


@pytest.mark.parametrize(
    "kind",
    ["broadcast", "allgather", "alltoall", "reducescatter"]
    + ["broadcast_object", "allgather_object", "add_process_set"],
)
def test_what_needs_every_ranks_data_is_refused(ranks, kind):
    message, _ = ranks(2).run(_others, kind)
    assert kind in message and "rank 1 called join() and can't take part" in message
