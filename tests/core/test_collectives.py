"""Every algorithm against a plain twin in numpy, over dtypes, sizes, operations and ranks."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twin import FLOATS, INTEGERS, OPS, allreduce, restore


@pytest.fixture
def pool(ranks, np):
    """`np` ranks, which afterwards choose their algorithm by themselves again."""
    yield ranks(np)
    ranks(np).run(restore)


# The two-level one on 2+1, 2+2 and 2+2+1 ranks, and where all or none of them share memory.
ALGORITHMS = ["shm", "mpi", "ring", "ps", "hierarchical/2"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("np", [1, 2, 3])
def test_every_dtype_and_operation(pool, algorithm):
    cases = [(dtype, 7, op, 1) for dtype in FLOATS + INTEGERS for op in OPS]
    cases += [("bool", 7, op, 1) for op in ("Min", "Max", "Product")]
    for wrong in pool.run(allreduce, algorithm, cases):
        assert wrong == []


# On both sides of the sizes at which an algorithm changes its ways.
_counts = st.one_of(
    st.integers(0, 40),
    st.sampled_from([8191, 8192, 8193, 131_071, 131_072, 131_073, 262_145, 400_003]),
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("np", [2, 3, 4, 5])
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cases=st.lists(
        st.tuples(
            st.sampled_from(FLOATS + INTEGERS),
            _counts,
            st.sampled_from(["Average", "Sum", "Min", "Max"]),
            st.integers(0, 1000),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_size(pool, algorithm, cases):
    for wrong in pool.run(allreduce, algorithm, cases):
        assert wrong == []


def _large_counts() -> list[list[float]]:
    """Make the pieces in which MPI is called small, so that many are needed."""
    import numpy as np

    import hvdlite
    from hvdlite import objects, testing
    from hvdlite.collectives.mpi import MPICollectives
    from hvdlite.runtime import groups

    hvdlite.init()
    collectives = MPICollectives(testing.collectives().group)
    groups.LARGEST_COUNT, before = 100, groups.LARGEST_COUNT
    try:
        rank, size = hvdlite.rank(), hvdlite.size()
        buffer = np.arange(1003, dtype=np.float32) * (rank + 1)
        collectives.allreduce(buffer, 1, lambda array: None)
        gathered = collectives.allgather(np.full(300 + rank, rank, np.int64), [300, 301])
        sent = np.arange(500, dtype=np.int32) + 1000 * rank
        swapped = collectives.alltoall(sent, [200, 300], [[200, 200], [300, 300]][rank])
        mine = np.full(777, rank, np.int16)
        collectives.broadcast(mine, 1)
        gathered_objects = objects.allgather_object("x" * 1000 + str(rank))
    finally:
        groups.LARGEST_COUNT = before
    total = sum(range(1, size + 1))
    return [
        bool((buffer == np.arange(1003, dtype=np.float32) * total).all()),
        gathered.tolist() == [0] * 300 + [1] * 301,
        swapped.tolist() == [*_stretch(0, rank), *_stretch(1, rank)],
        mine.tolist() == [1] * 777,
        gathered_objects == ["x" * 1000 + str(i) for i in range(size)],
    ]


def _stretch(source: int, target: int) -> range:
    start, stop = ((0, 200), (200, 500))[target]
    return range(1000 * source + start, 1000 * source + stop)


def test_more_elements_than_one_mpi_call_takes(ranks):
    for good in ranks(2).run(_large_counts):
        assert good == [True] * 5
