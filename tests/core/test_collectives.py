"""Every algorithm against a plain twin in numpy, over dtypes, sizes, operations and ranks."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
OPS = {"Average": 0, "Sum": 1, "Min": 3, "Max": 4, "Product": 5}


def _data(dtype: str, count: int, rank: int, seed: int):
    """A rank's tensor: random small integers, so that sums are exact in every dtype."""
    import ml_dtypes
    import numpy as np

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    generator = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return generator.integers(0, 2, count).astype(kind)
    low = 0 if kind.kind == "u" else -3
    return generator.integers(low, 4, count).astype(kind)


def _twin(op: str, parts: list, size: int):
    """What the reduction should give, computed in one process in float64 or int64."""
    import numpy as np

    kind = parts[0].dtype
    if kind == np.bool_:
        return {"Max": np.any, "Min": np.all, "Product": np.all}[op](np.stack(parts), axis=0)
    wide = np.float64 if kind.kind not in "iu" else np.int64
    stack = np.stack([part.astype(wide) for part in parts])
    if op == "Average":
        total = stack.sum(0)
        result = np.trunc(total / size) if kind.kind in "iu" else total / size
    else:
        reduce = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}[op]
        result = reduce(stack, axis=0)
    return result.astype(kind)


def _allreduce(algorithm: str, cases: list) -> list[str]:
    """Reduce each case with an algorithm; returns the cases that went wrong."""
    import os

    import numpy as np

    import hvdlite
    from hvdlite import basics
    from hvdlite.request import Descriptor, Request

    if os.environ.get("HVDLITE_ALLREDUCE") != algorithm or not hvdlite.is_initialized():
        os.environ["HVDLITE_ALLREDUCE"] = algorithm
        hvdlite.shutdown()
        hvdlite.init()
    engine = basics.engine()
    if engine.channels:
        assert engine.channels[0].collectives.name == algorithm
    wrong = []
    for dtype, count, op, seed in cases:
        parts = [_data(dtype, count, rank, seed) for rank in range(hvdlite.size())]
        mine = parts[hvdlite.rank()]
        out = np.empty_like(mine)
        what = Descriptor(
            "allreduce", engine.name("t"), OPS[op], dtype, ((count,),), -1, 1.0, 1.0, "cpu"
        )
        engine.wait(engine.submit(Request(what, (mine.copy(),), (out,))))
        right = _twin(op, parts, hvdlite.size())
        close = out.tobytes() == right.tobytes()
        if op == "Average" and not close and dtype not in INTEGERS:
            step = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, 1e-6)
            close = np.allclose(out.astype(float), right.astype(float), rtol=step)
        if not close:
            wrong.append(f"{dtype} {count} {op} {seed}: {out[:5]} instead of {right[:5]}")
    return wrong


def _restore() -> None:
    import os

    import hvdlite

    os.environ.pop("HVDLITE_ALLREDUCE", None)
    hvdlite.shutdown()


@pytest.fixture
def pool(ranks, np):
    """`np` ranks, which afterwards choose their algorithm by themselves again."""
    yield ranks(np)
    ranks(np).run(_restore)


ALGORITHMS = ["shm", "mpi", "ring"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("np", [1, 2, 3])
def test_every_dtype_and_operation(pool, algorithm):
    cases = [(dtype, 7, op, 1) for dtype in FLOATS + INTEGERS for op in OPS]
    cases += [("bool", 7, op, 1) for op in ("Min", "Max", "Product")]
    for wrong in pool.run(_allreduce, algorithm, cases):
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
    for wrong in pool.run(_allreduce, algorithm, cases):
        assert wrong == []


def _large_counts() -> list[list[float]]:
    """Make the pieces in which MPI is called small, so that many are needed."""
    import numpy as np

    import hvdlite
    from hvdlite import basics
    from hvdlite.collectives import mpi

    hvdlite.init()
    collectives = mpi.MPICollectives(basics.engine().channels[0].group)
    mpi.LARGEST_COUNT, before = 100, mpi.LARGEST_COUNT
    try:
        rank, size = hvdlite.rank(), hvdlite.size()
        buffer = np.arange(1003, dtype=np.float32) * (rank + 1)
        collectives.allreduce(buffer, 1, lambda array: None)
        gathered = collectives.allgather(np.full(300 + rank, rank, np.int64), [300, 301])
        sent = np.arange(500, dtype=np.int32) + 1000 * rank
        swapped = collectives.alltoall(sent, [200, 300], [[200, 200], [300, 300]][rank])
        mine = np.full(777, rank, np.int16)
        collectives.broadcast(mine, 1)
    finally:
        mpi.LARGEST_COUNT = before
    total = sum(range(1, size + 1))
    return [
        bool((buffer == np.arange(1003, dtype=np.float32) * total).all()),
        gathered.tolist() == [0] * 300 + [1] * 301,
        swapped.tolist() == [*_stretch(0, rank), *_stretch(1, rank)],
        mine.tolist() == [1] * 777,
    ]


def _stretch(source: int, target: int) -> range:
    start, stop = ((0, 200), (200, 500))[target]
    return range(1000 * source + start, 1000 * source + stop)


def test_more_elements_than_one_mpi_call_takes(ranks):
    for good in ranks(2).run(_large_counts):
        assert good == [True] * 4
