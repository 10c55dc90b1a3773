"""All collectives of torch tensors, with every algorithm, against a plain twin on each rank."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twin import FLOATS, INTEGERS, choose, restore

ALGORITHMS = ["shm", "mpi", "ring", "ps", "hierarchical/2"]


@pytest.fixture
def pool(ranks, np):
    """`np` ranks, which afterwards choose their algorithm by themselves again."""
    yield ranks(np)
    ranks(np).run(restore)


def _laid_out(tensor, layout: str):
    """The same values in another order of memory, or as part of a larger tensor."""
    import torch

    rows, columns = tensor.shape
    if layout == "transposed":
        return tensor.t().contiguous().t()
    if layout == "every other":
        whole = torch.zeros(rows * 2, columns * 2, dtype=tensor.dtype)
        whole[::2, ::2] = tensor
        return whole[::2, ::2]
    if layout == "view":
        whole = torch.zeros(rows + 2, columns, dtype=tensor.dtype)
        whole[1 : rows + 1] = tensor
        return whole[1 : rows + 1]
    if layout == "three dimensions":
        return tensor.view(rows, columns, 1).expand(rows, columns, 2)
    return tensor


def _part(dtype: str, rows: int, columns: int, layout: str, rank: int, seed: int):
    """A rank's tensor: small integers, so that sums are exact in every dtype."""
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 4, (rows, columns), generator=generator)
    return _laid_out(numbers.to(getattr(torch, dtype)), layout)


def _run(algorithm: str, cases: list) -> list[str]:
    """Make each case's calls; what they did wrong."""
    import torch

    import hvdlite.torch as hvd

    choose(algorithm)
    size, rank, wrong = hvd.size(), hvd.rank(), []
    for kind, dtype, rows, columns, layout, seed in cases:
        different = [max(0, rows + (r - 1) * (seed % 3)) for r in range(size)]
        if kind in ("allgather", "alltoall"):
            parts = [_part(dtype, different[r], columns, layout, r, seed) for r in range(size)]
        else:
            parts = [_part(dtype, rows, columns, layout, r, seed) for r in range(size)]
        mine, root = parts[rank], seed % size
        before = mine.clone()
        if kind == "allgather":
            got, right = hvd.allgather(mine), torch.cat(parts)
        elif kind == "broadcast":
            got, right = hvd.broadcast(mine, root), parts[root]
        elif kind == "broadcast_":
            got, right = mine, parts[root].clone()
            if layout == "three dimensions":
                got = mine = mine.contiguous()
            hvd.broadcast_(mine, root)
        elif kind == "alltoall":
            # Rank r sends its rows in stretches that get longer or shorter from rank to rank.
            splits = []
            for r in range(size):
                left, counts = different[r], []
                for s in range(size - 1):
                    counts.append(min(left, (rows // size + seed * (s + r)) % (rows + 1)))
                    left -= counts[-1]
                splits.append([*counts, left])
            got, received = hvd.alltoall(mine, torch.tensor(splits[rank]))
            pieces = [part.split(splits[r])[rank] for r, part in enumerate(parts)]
            right = torch.cat(pieces)
            if received.tolist() != [len(piece) for piece in pieces]:
                wrong.append(f"alltoall: {received} rows instead of {pieces}")
        elif kind == "reducescatter":
            got = hvd.reducescatter(mine, op=hvd.Sum)
            counts = [rows // size + (r < rows % size) for r in range(size)]
            right = sum(part.double() for part in parts).to(mine.dtype).split(counts)[rank]
        else:
            op = {"min": hvd.Min, "max": hvd.Max}[kind]
            stack = torch.stack([part.double() for part in parts])
            got = hvd.reducescatter(mine, op=op)
            counts = [rows // size + (r < rows % size) for r in range(size)]
            right = (stack.amin(0) if op == hvd.Min else stack.amax(0)).to(mine.dtype)
            right = right.split(counts)[rank]
        if got.dtype != mine.dtype or not torch.equal(got, right):
            wrong.append(f"{kind} {dtype} {rows} {columns} {layout} {seed}: {got} not {right}")
        if kind != "broadcast_" and not torch.equal(mine, before):
            wrong.append(f"{kind} {dtype} {rows} {columns} {layout} {seed}: changed its input")
    return wrong


_LAYOUTS = ["plain", "transposed", "every other", "view", "three dimensions"]
_moves = st.sampled_from(["allgather", "alltoall", "broadcast", "broadcast_"])
_reductions = st.sampled_from(["reducescatter", "min", "max"])
# Rows and columns; the last ones fill more than one chunk of every way to move bytes.
_shapes = st.one_of(
    st.tuples(st.integers(0, 12), st.integers(0, 5)),
    st.sampled_from([(1, 1), (131, 7), (1, 4099), (20_011, 9), (262_147, 1), (3, 70_001)]),
)
_cases = st.one_of(
    st.tuples(_moves, st.sampled_from([*FLOATS, *INTEGERS, "bool", "complex64"]), _shapes),
    st.tuples(_reductions, st.sampled_from(FLOATS + INTEGERS), _shapes),
).flatmap(
    lambda case: st.tuples(
        st.just(case[0]),
        st.just(case[1]),
        st.just(case[2][0]),
        st.just(case[2][1]),
        st.sampled_from(_LAYOUTS),
        st.integers(0, 1000),
    )
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("np", [2, 3, 4])
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases=st.lists(_cases, min_size=1, max_size=6))
def test_any_tensor(pool, algorithm, cases):
    for wrong in pool.run(_run, algorithm, cases):
        assert wrong == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("np", [2, 3])
def test_every_dtype_and_layout(pool, algorithm):
    kinds = ["allgather", "alltoall", "broadcast", "broadcast_", "reducescatter", "min", "max"]
    cases = [
        (kind, dtype, 5, 3, layout, seed)
        for seed, dtype in enumerate([*FLOATS, *INTEGERS])
        for kind in kinds
        for layout in _LAYOUTS
    ]
    for wrong in pool.run(_run, algorithm, cases):
        assert wrong == []
