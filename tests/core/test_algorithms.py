"""What is particular to one algorithm: its messages, its choice, its hosts, its arithmetic."""

import pytest
from mpi import launch
from twin import FLOATS, INTEGERS, allreduce, restore


@pytest.fixture
def pool(ranks, np):
    yield ranks(np)
    ranks(np).run(restore)


def _start(**environment: str):
    """A new world with these settings; returns the way in which bytes move in it."""
    from hvdlite import testing

    return testing.new_world(**environment)


# Messages


def _sent(algorithm: str, count: int) -> list[int]:
    """The bytes of every message that this rank sends for one allreduce."""
    import numpy as np
    from mpi4py import MPI

    sent = []

    class Counting(MPI.Intracomm):
        def Isend(self, data, *args, **kwargs):
            sent.append(data.nbytes)
            return super().Isend(data, *args, **kwargs)

    collectives = _start(HVDLITE_ALLREDUCE=algorithm)
    group = collectives.group
    group.comm = Counting(group.comm)
    buffer = np.ones(count, dtype=np.float32)
    collectives.allreduce(buffer, 1, lambda array: None)
    assert (buffer == collectives.group.size).all()
    return sent


@pytest.mark.parametrize("np", [2, 3, 5])
def test_a_parameter_server_sends_to_everybody(pool, np):
    server, *workers = pool.run(_sent, "ps", 300)
    assert server == [1200] * (np - 1)
    assert workers == [[1200]] * (np - 1)


@pytest.mark.parametrize("np", [2, 3, 5])
def test_a_ring_shares_the_work(pool, np):
    assert pool.run(_sent, "ring", 300) == [[1200 // np] * 2 * (np - 1)] * np


# The choice


def _chosen(environment: dict, process_sets: list) -> list[str]:
    import hvdlite
    from hvdlite import testing

    _start(**environment)
    for ranks in process_sets:
        hvdlite.add_process_set(ranks)
    return testing.algorithms()


def _choose(pool, environment: dict, process_sets: list = ()) -> list[list[str]]:
    try:
        return pool.run(_chosen, environment, list(process_sets))
    finally:
        pool.run(_unset, list(environment))


def _unset(names: list) -> None:
    import os

    for name in names:
        os.environ.pop(name, None)


@pytest.mark.parametrize(
    ("environment", "np", "name"),
    [
        ({}, 2, "shm"),
        ({"HVDLITE_RANKS_PER_HOST": "2"}, 2, "shm"),
        ({"HVDLITE_RANKS_PER_HOST": "1"}, 2, "mpi"),
        ({"HVDLITE_RANKS_PER_HOST": "2"}, 3, "hierarchical"),
        ({"HVDLITE_RANKS_PER_HOST": "2"}, 4, "hierarchical"),
        ({"HVDLITE_RANKS_PER_HOST": "2", "HVDLITE_ALLREDUCE": "shm"}, 4, "hierarchical"),
        ({"HVDLITE_RANKS_PER_HOST": "2", "HVDLITE_ALLREDUCE": "ring"}, 4, "ring"),
        ({"HVDLITE_ALLREDUCE": "ps"}, 2, "ps"),
        ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}, 2, "hierarchical"),
        ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HVDLITE_ALLREDUCE": "mpi"}, 2, "mpi"),
        ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}, 2, "shm"),
    ],
)
def test_the_choice_follows_hosts_and_settings(pool, environment, np, name):
    assert _choose(pool, environment) == [[name]] * np


@pytest.mark.parametrize("np", [4])
def test_each_process_set_has_its_own(pool, np):
    """Ranks 0 and 1 are one host, 2 and 3 the other."""
    environment = {"HVDLITE_RANKS_PER_HOST": "2"}
    one, two, three, four = _choose(pool, environment, [[0, 1], [1, 2], [0, 2, 3]])
    assert one == ["hierarchical", "shm", "hierarchical"]
    assert two == ["hierarchical", "shm", "mpi"]
    assert three == ["hierarchical", "mpi", "hierarchical"]
    assert four == ["hierarchical", "hierarchical"]


# Hosts


@pytest.mark.parametrize("algorithm", ["hierarchical/1", "hierarchical/2", "hierarchical/3"])
@pytest.mark.parametrize("np", [3, 4, 5])
def test_hosts_of_any_size(pool, algorithm):
    cases = [
        (dtype, count, op, 1)
        for dtype in FLOATS + INTEGERS
        for count in (0, 1, 2, 70_001)
        for op in ("Average", "Max")
    ]
    for wrong in pool.run(allreduce, algorithm, cases):
        assert wrong == []


def _carriers(per_host: str) -> tuple[int, bool]:
    collectives = _start(HVDLITE_ALLREDUCE="hierarchical", HVDLITE_RANKS_PER_HOST=per_host)
    return collectives.carriers, collectives.is_carrier


@pytest.mark.parametrize(
    ("np", "per_host", "carriers", "who"),
    [
        (4, "2", 2, [0, 1, 2, 3]),
        (5, "3", 2, [0, 1, 3, 4]),
        (5, "2", 1, [0, 2, 4]),
        (3, "3", 3, [0, 1, 2]),
    ],
)
def test_who_talks_to_the_other_hosts(pool, np, per_host, carriers, who):
    answers = pool.run(_carriers, per_host)
    assert answers == [(carriers, rank in who) for rank in range(np)]


def _rows(per_host: str, dtypes: list, count: int) -> list[str]:
    """Allreduce buffers that lie in the memory of each host; returns what went wrong."""
    from twin import data, twin

    import hvdlite
    from hvdlite import testing
    from hvdlite.request import Descriptor, Request

    _start(HVDLITE_RANKS_PER_HOST=per_host)
    wrong = []
    for dtype in dtypes:
        parts = [data(dtype, count, rank, 5) for rank in range(hvdlite.size())]
        segment = testing.allocate("buffer", parts[0].nbytes)
        rows = [row.view(parts[0].dtype) for row in segment.rows]
        assert len(rows) == hvdlite.local_size()
        mine = rows[segment.index]
        for _ in range(2):  # the second time, the ranks find the first time's result
            mine[:] = parts[hvdlite.rank()]
            what = Descriptor("allreduce", "buffer", 1, dtype, ((count,),), packed=True)
            testing.run(Request(what, (mine,), (mine,), shared_rows=rows))
            if mine.tobytes() != twin("Sum", parts, hvdlite.size()).tobytes():
                wrong.append(f"{dtype} {count}: {mine[:5]}")
    return wrong


@pytest.mark.parametrize("per_host", ["1000", "2", "3"])
@pytest.mark.parametrize("np", [2, 3, 4, 5])
def test_buffers_in_shared_memory(pool, np, per_host):
    for count in (1, 7, 50_003):
        for wrong in pool.run(_rows, per_host, FLOATS + INTEGERS, count):
            assert wrong == []


def _without_memory(limit: str, mib: int) -> tuple[float, bool, bool]:
    import numpy as np

    import hvdlite
    from hvdlite import testing

    collectives = _start(HVDLITE_RANKS_PER_HOST="2", HVDLITE_SHARED_MEMORY_MB=limit)
    together = testing.allocate("buffer", mib << 20) is not None
    alone = collectives.inside.allocate(mib << 20) is not None
    tensor = np.ones(3 << 18)  # 6 MiB, more than one piece
    collectives.allreduce(tensor, 1, lambda array: None)
    hvdlite.shutdown()
    return tensor.mean(), alone, together


@pytest.mark.parametrize("np", [3])
@pytest.mark.parametrize(
    ("limit", "alone"), [("0", [False, False, False]), ("40", [False, False, True])]
)
def test_a_buffer_is_in_shared_memory_on_all_hosts_or_on_none(pool, np, limit, alone):
    """Two ranks with 24 MiB each exceed the limit; rank 2, alone on its host, does not."""
    try:
        answers = pool.run(_without_memory, limit, 24)
    finally:
        pool.run(_unset, ["HVDLITE_SHARED_MEMORY_MB"])
    assert answers == [(np, alone[rank], False) for rank in range(np)]


def test_a_rank_that_ends_amid_an_allreduce_ends_it_on_all_hosts():
    outcome = launch(
        """
        import numpy as np
        import hvdlite
        from hvdlite import testing

        hvdlite.init()
        collectives = testing.collectives()
        assert collectives.name == "hierarchical"
        if hvdlite.rank() == 3:
            raise SystemExit
        try:
            collectives.allreduce(np.ones(1000), 1, lambda array: None)
        except hvdlite.exceptions.HorovodInternalError as error:
            print("told:", error)
        """,
        np=4,
        env={"HVDLITE_RANKS_PER_HOST": "2"},
    )
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("has ended its program") == 3, outcome


def _still_lent(algorithm: str) -> list[int]:
    """How many arrays each group of this rank holds for MPI after some calls have ended."""
    import numpy as np

    collectives = _start(HVDLITE_ALLREDUCE=algorithm, HVDLITE_RANKS_PER_HOST="2")
    for _ in range(3):
        collectives.allreduce(np.ones(10), 1, lambda array: None)
        collectives.alltoall(np.ones(3), [1, 1, 1], [1, 1, 1])
    return [len(group.under_way) for group in collectives.group.with_parts()]


@pytest.mark.parametrize("algorithm", ["mpi", "ring", "ps", "hierarchical"])
@pytest.mark.parametrize("np", [3])
def test_a_call_that_has_ended_keeps_no_arrays(pool, algorithm):
    for lent in pool.run(_still_lent, algorithm):
        assert not any(lent)


# Reduce-scatter and allgather


def _halves(algorithm: str, counts: list) -> list[bool]:
    import numpy as np
    from twin import data, twin

    import hvdlite

    collectives, good = _start(HVDLITE_ALLREDUCE=algorithm), []
    rank, start = hvdlite.rank(), sum(counts[: hvdlite.rank()])
    for dtype in ["float16", "bfloat16", "float32", "int64", "uint8"]:
        parts = [data(dtype, sum(counts), other, 9) for other in range(hvdlite.size())]
        right = twin("Sum", parts, hvdlite.size())
        mine = collectives.reducescatter(parts[rank], counts, 1, lambda array: None)
        good.append(mine.tobytes() == right[start : start + counts[rank]].tobytes())
        gathered = collectives.allgather(mine, counts)
        good.append(np.array_equal(gathered, right))
    return good


@pytest.mark.parametrize("algorithm", ["shm", "mpi"])
@pytest.mark.parametrize(
    ("np", "counts"),
    [(2, [0, 0]), (2, [5, 0]), (3, [1, 0, 2]), (3, [300_000, 1, 70_000]), (2, [0, 262_145])],
)
def test_reducescatter_and_allgather_with_any_shares(pool, np, counts, algorithm):
    for good in pool.run(_halves, algorithm, counts):
        assert all(good)


# Rounding


def _half_sum(algorithm: str, per_host: str, dtype: str, numbers: list) -> float:
    import ml_dtypes
    import numpy as np

    import hvdlite

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    collectives = _start(HVDLITE_ALLREDUCE=algorithm, HVDLITE_RANKS_PER_HOST=per_host)
    buffer = np.full(10, numbers[hvdlite.rank()], dtype=kind)
    collectives.allreduce(buffer, 1, lambda array: None)
    assert len(set(buffer.tolist())) == 1
    return float(buffer[0])


@pytest.mark.parametrize(
    ("algorithm", "per_host"),
    [("shm", ""), ("mpi", ""), ("ring", ""), ("ps", ""), ("hierarchical", "2")],
)
@pytest.mark.parametrize(("dtype", "ulp"), [("float16", 2), ("bfloat16", 16)])
@pytest.mark.parametrize("np", [3])
def test_halves_are_rounded_once(pool, np, algorithm, per_host, dtype, ulp):
    """Half an ulp, added twice, is lost if every sum is rounded."""
    numbers = [2048, ulp / 2, ulp / 2]
    assert pool.run(_half_sum, algorithm, per_host, dtype, numbers) == [2048 + ulp] * np
