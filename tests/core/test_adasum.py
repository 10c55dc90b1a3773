"""Adasum against its formula in float64, and what is true of it whatever the vectors are."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twin import FLOATS, restore


def _combine(vectors: list):
    """All ranks' vectors in pairs, then the results in pairs, and so on."""
    while len(vectors) > 1:
        vectors = [_pair(vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def _pair(a, b):
    product, of_a, of_b = float(a @ b), float(a @ a), float(b @ b)
    first = a * (1 - product / of_a / 2) if of_a else a
    second = b * (1 - product / of_b / 2) if of_b else b
    return first + second


def _vector(dtype: str, count: int, rank: int, seed: int):
    import ml_dtypes
    import numpy as np

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return np.random.default_rng([seed, rank]).normal(size=count).astype(kind)


def _adasum(counts: list, dtype: str, seed: int, algorithm: str = "auto") -> float:
    """Combine several tensors at once; the largest error, as a share of the longest vector."""
    import os

    import numpy as np
    from mpi4py import MPI

    import hvdlite
    from hvdlite import calls
    from hvdlite.request import ADASUM

    if os.environ.get("HVDLITE_ALLREDUCE", "auto") != algorithm or not hvdlite.is_initialized():
        os.environ["HVDLITE_ALLREDUCE"] = algorithm
        hvdlite.shutdown()
        hvdlite.init()
    started, error = [], 0.0
    for i, count in enumerate(counts):
        mine = _vector(dtype, count, hvdlite.rank(), seed + i)
        out = np.empty_like(mine)
        started.append((calls.allreduce([mine], [out], op=ADASUM, prescale=2.0), out))
    for i, (call, out) in enumerate(started):
        call.wait()
        size = range(hvdlite.size())
        vectors = [2 * _vector(dtype, counts[i], r, seed + i).astype(float) for r in size]
        right = _combine(vectors)
        length = max(np.linalg.norm(vector) for vector in [*vectors, right]) or 1.0
        error = max(error, float(np.linalg.norm(out.astype(float) - right)) / length)
        everywhere = MPI.COMM_WORLD.allgather(out.tobytes())
        assert everywhere == [out.tobytes()] * hvdlite.size()  # bit-equal
    return error


TOLERANCE = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 1e-6, "float64": 1e-14}


@pytest.fixture
def pool(ranks, np):
    yield ranks(np)
    ranks(np).run(restore)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("np", [1, 2, 4, 8])
def test_as_the_formula_says(pool, np, dtype):
    for count in (0, 1, 3, 1000, 70_001):
        assert max(pool.run(_adasum, [count], dtype, 1)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("np", [2, 4])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 1000),
)
def test_each_tensor_of_a_batch_by_itself(pool, np, counts, dtype, seed):
    assert max(pool.run(_adasum, counts, dtype, seed)) <= 4 * TOLERANCE[dtype]


@pytest.mark.parametrize("algorithm", ["shm", "mpi", "ring", "ps", "hierarchical"])
@pytest.mark.parametrize("np", [2])
def test_beside_every_algorithm(pool, np, algorithm):
    assert max(pool.run(_adasum, [10, 0, 5], "float32", 3, algorithm)) <= TOLERANCE["float32"]


def _of(vectors: list, dtype: str) -> list:
    import numpy as np

    import hvdlite
    from hvdlite import testing
    from hvdlite.collectives.adasum import adasum

    hvdlite.init()
    mine = np.array(vectors[hvdlite.rank()], dtype=dtype)
    adasum(testing.collectives().group, mine, [len(mine)])
    return mine.tolist()


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[3.0, 0.0], [0.0, 4.0]], [3.0, 4.0]),  # orthogonal: the sum
        ([[3.0, 4.0], [3.0, 4.0]], [3.0, 4.0]),  # equal: the mean
        ([[3.0, 4.0], [-3.0, -4.0]], [0.0, 0.0]),
        ([[3.0, 4.0], [0.0, 0.0]], [3.0, 4.0]),  # a rank without data changes nothing
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        ([[1e-30, 0.0], [1e30, 0.0]], [5e29, 0.0]),  # parallel: the mean, however far apart
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_directions(ranks, vectors, expected, dtype):
    assert ranks(2).run(_of, vectors, dtype) == [pytest.approx(expected, rel=1e-6)] * 2


def test_numbers_that_have_no_square(ranks):
    """Squared, these are below the smallest number; they count as orthogonal."""
    (first, second), _ = ranks(2).run(_of, [[1e-200, 0.0], [1e-200, 1e-200]], "float64")
    assert math.isclose(first, 2e-200)
    assert math.isclose(second, 1e-200)


def _refused() -> list[str]:
    import arrays as hvd
    import numpy as np

    hvd.init()
    told = []
    for call in (
        lambda: hvd.allreduce(np.ones(3), op=hvd.Adasum).wait(),
        lambda: hvd.allreduce(np.ones(3, dtype=np.int32), op=hvd.Adasum).wait(),
        lambda: hvd.allreduce(np.ones(3, dtype=np.complex64), op=hvd.Adasum).wait(),
        lambda: hvd.reducescatter(np.ones(3), op=hvd.Adasum).wait(),
    ):
        try:
            call()
            told.append("no error")
        except (NotImplementedError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")
    assert hvd.allreduce(np.ones(1), op=hvd.Sum).wait().item() == hvd.size()
    return told


def test_what_it_can_not_do_is_refused_at_once(ranks):
    for told in ranks(3).run(_refused):
        assert told[0].startswith("NotImplementedError")
        assert "power of two" in told[0]
        assert told[1].startswith("ValueError")
        assert "floating-point" in told[1]
        assert told[2].startswith("ValueError")
        assert told[3].startswith("NotImplementedError")
