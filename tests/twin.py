"""Reductions by a plain twin in numpy, and what an algorithm makes otherwise."""

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
OPS = {"Average": 0, "Sum": 1, "Min": 3, "Max": 4, "Product": 5}


def data(dtype: str, count: int, rank: int, seed: int):
    """A rank's tensor: random small integers, so that sums are exact in every dtype."""
    import ml_dtypes
    import numpy as np

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    generator = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return generator.integers(0, 2, count).astype(kind)
    low = 0 if kind.kind == "u" else -3
    return generator.integers(low, 4, count).astype(kind)


def twin(op: str, parts: list, size: int):
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


def choose(algorithm: str):
    """Let this rank move bytes with an algorithm; returns the engine.

    "ring/2" is the ring where each two ranks pretend to be a host of their own.
    """
    import os

    import hvdlite
    from hvdlite import testing

    algorithm, _, per_host = algorithm.partition("/")
    wanted = {"HVDLITE_ALLREDUCE": algorithm, "HVDLITE_RANKS_PER_HOST": per_host}
    if not hvdlite.is_initialized() or any(os.environ.get(k) != v for k, v in wanted.items()):
        os.environ.update(wanted)
        hvdlite.shutdown()
        hvdlite.init()
    assert testing.algorithms() in ([], [algorithm])


def allreduce(algorithm: str, cases: list) -> list[str]:
    """Reduce each case with an algorithm (see `choose`); returns the cases that went wrong."""
    import numpy as np

    import hvdlite
    from hvdlite import calls

    choose(algorithm)
    wrong = []
    for dtype, count, op, seed in cases:
        parts = [data(dtype, count, rank, seed) for rank in range(hvdlite.size())]
        mine = parts[hvdlite.rank()]
        out = np.empty_like(mine)
        calls.allreduce([mine.copy()], [out], op=OPS[op]).wait()
        right = twin(op, parts, hvdlite.size())
        close = out.tobytes() == right.tobytes()
        if op == "Average" and not close and dtype not in INTEGERS:
            step = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, 1e-6)
            close = np.allclose(out.astype(float), right.astype(float), rtol=step)
        if not close:
            wrong.append(f"{dtype} {count} {op} {seed}: {out[:5]} instead of {right[:5]}")
    return wrong


def restore() -> None:
    import os

    import hvdlite

    for name in ("HVDLITE_ALLREDUCE", "HVDLITE_RANKS_PER_HOST"):
        os.environ.pop(name, None)
    hvdlite.shutdown()
