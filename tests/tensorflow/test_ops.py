"""The collectives on TensorFlow's tensors: at once, in a tf.function, in a graph of v1."""

import pytest
from twin import FLOATS, INTEGERS, OPS, data, twin

MODES = ["eager", "function", "graph"]


def evaluate(mode: str, make):
    """What the tensors that `make()` returns hold, computed in one of the three ways."""
    import tensorflow as tf

    if mode == "eager":
        return [tensor.numpy() for tensor in make()]
    if mode == "function":
        return [t.numpy() for t in tf.function(lambda: make(), autograph=False)()]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(make())


def _every_op(mode: str) -> list[str]:
    """Each op, for each dtype, against the twin; what went wrong."""
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    size, rank, wrong = hvd.size(), hvd.rank(), []

    def check(title: str, got, right) -> None:
        right = np.asarray(right)
        if got.dtype != right.dtype or not np.array_equal(got, right):
            wrong.append(f"{title}: {got!r} instead of {right!r}")

    for dtype in [*FLOATS, *INTEGERS, "uint16", "bool"]:
        parts = [data(dtype, 12, r, 5).reshape(6, 2) for r in range(size)]
        uneven = [part[: 3 + r] for r, part in enumerate(parts)]
        splits = [[r + 1, 4 - r] if r else [3, 3] for r in range(size)]
        ops = {name: op for name, op in OPS.items() if dtype != "bool" or op > 1}

        def make(parts=parts, uneven=uneven, splits=splits, ops=ops) -> list:
            mine = tf.constant(parts[rank])
            made = [hvd.allreduce(mine, op=op) for op in ops.values()]
            made += hvd.grouped_allreduce([mine, mine[0]], op=hvd.Max)
            made += [hvd.allgather(uneven[rank]), hvd.broadcast(mine, 1)]
            made += hvd.alltoall(mine[: sum(splits[rank])], splits[rank])
            made += [hvd.alltoall(mine), hvd.reducescatter(mine, op=hvd.Max)]
            return made

        got = iter(evaluate(mode, make))
        for name in ops:
            check(f"{name} {dtype}", next(got), twin(name, parts, size))
        check(f"grouped {dtype}", next(got), twin("Max", parts, size))
        check(f"grouped {dtype}", next(got), twin("Max", [part[0] for part in parts], size))
        check(f"allgather {dtype}", next(got), np.concatenate(uneven))
        check(f"broadcast {dtype}", next(got), parts[1])
        received = [
            part[sum(splits[r][:rank]) : sum(splits[r][: rank + 1])] for r, part in enumerate(parts)
        ]
        check(f"alltoall {dtype}", next(got), np.concatenate(received))
        check(f"splits {dtype}", next(got), np.int32([len(piece) for piece in received]))
        halves = [part[3 * rank : 3 * rank + 3] for part in parts]
        check(f"even alltoall {dtype}", next(got), np.concatenate(halves))
        check(f"reducescatter {dtype}", next(got), twin("Max", halves, size))
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_op_for_every_dtype(ranks, mode):
    for wrong in ranks(2).run(_every_op, mode, timeout=180):
        assert wrong == []


def _gradients(mode: str) -> list[list]:
    """The gradient of each op, for a loss that weighs the elements of the result differently."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    ops = {
        "average": lambda x: hvd.allreduce(x),
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "scaled": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0),
        "allgather": lambda x: hvd.allgather(x[: rank + 1]),
        "broadcast": lambda x: hvd.broadcast(x, 1),
        "alltoall": lambda x: hvd.alltoall(x),
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "compressed": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
    }

    def make() -> list:
        found = []
        for op in ops.values():
            start = tf.constant([1.0, 2.0])
            with tf.GradientTape() as tape:
                tape.watch(start)
                result = op(start)
                weights = tf.cast(tf.range(1, tf.shape(result)[0] + 1), tf.float32)
                loss = tf.reduce_sum(weights * result) * (rank + 1)
            found.append(tape.gradient(loss, start))
        return found

    return dict(zip(ops, [found.tolist() for found in evaluate(mode, make)], strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_mean_of_the_ranks_losses(ranks, mode):
    both = ranks(2).run(_gradients, mode)
    # Rank r weighs its loss by r + 1, so that gradients of ranks are 1 and 2 times (1, 2, ...).
    assert [each["average"] for each in both] == [[1.5, 3.0]] * 2
    assert [each["sum"] for each in both] == [[3.0, 6.0]] * 2
    assert [each["scaled"] for each in both] == [[9.0, 18.0]] * 2
    assert [each["allgather"] for each in both] == [[1.5, 0.0], [3.0, 4.5]]
    assert [each["broadcast"] for each in both] == [[0.0, 0.0], [1.5, 3.0]]
    assert [each["alltoall"] for each in both] == [[1.0, 2.0], [2.0, 4.0]]
    assert [each["reducescatter"] for each in both] == [[2.0, 4.0]] * 2
    assert [each["compressed"] for each in both] == [[1.5, 3.0]] * 2


def _slices() -> list:
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    mine = tf.IndexedSlices(tf.fill([rank + 1, 2], 2.0), tf.range(rank + 1), tf.constant([4, 2]))
    found = []
    for op in (hvd.Sum, hvd.Average):
        reduced = hvd.allreduce(mine, op=op)
        found.append(tf.convert_to_tensor(reduced).numpy()[:, 0].tolist())
    mixed = hvd.grouped_allreduce([tf.ones([1]), mine], op=hvd.Sum)
    found.append([type(each).__name__ for each in mixed])
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        hvd.allreduce(mine, op=hvd.Min)
    with pytest.raises(NotImplementedError, match="can't be scaled"):
        hvd.allreduce(mine, prescale_factor=2.0)
    assert np.array_equal(hvd.allreduce(tf.ones([2])).numpy(), [1, 1])  # still in step
    return found


def test_indexed_slices_add_up(ranks):
    for total, mean, kinds in ranks(2).run(_slices):
        assert total == [4.0, 2.0, 0.0, 0.0]
        assert mean == [2.0, 1.0, 0.0, 0.0]
        assert kinds == ["EagerTensor", "IndexedSlices"]


def _disagree(mode: str) -> list[str]:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    rank, told = hvd.rank(), []
    calls = {
        "shape": lambda: hvd.allreduce(tf.ones([rank + 1]), name=f"shape.{mode}"),
        "dtype": lambda: hvd.allreduce(
            tf.ones([1], tf.float64 if rank else tf.float32), name=f"dtype.{mode}"
        ),
        "root": lambda: hvd.broadcast(tf.ones([1]), rank, name=f"root.{mode}"),
    }
    for call in calls.values():
        try:
            evaluate(mode, lambda call=call: [call()])
        except Exception as error:
            assert mode != "eager" or isinstance(error, hvd.HorovodInternalError)
            assert isinstance(error, tf.errors.OpError)
            told.append(str(error))
        else:
            told.append("no error")
    assert evaluate(mode, lambda: [hvd.allreduce(tf.ones([1]), op=hvd.Sum)]) == [hvd.size()]
    return told


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_disagree_get_the_same_error_and_go_on(ranks, mode):
    for shape, dtype, root in ranks(2).run(_disagree, mode):
        assert f"allreduce 'shape.{mode}': the ranks disagree on the shape: (1,) on rank 0" in shape
        assert "disagree on the dtype: float32 on rank 0, float64 on rank 1" in dtype
        assert "disagree on the root rank: 0 on rank 0, 1 on rank 1" in root


def _wrong_arguments() -> None:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    outsiders, also = hvd.ProcessSet([0]), tf.errors.InvalidArgumentError  # besides ValueError
    cases = {
        "is not a rank": (also, lambda: hvd.broadcast(tf.ones([1]), 7)),
        "not in use": (also, lambda: hvd.allreduce(tf.ones([1]), process_set=outsiders)),
        "not both": (ValueError, lambda: hvd.allreduce(tf.ones([1]), average=True, op=hvd.Sum)),
        "has no rows": (also, lambda: hvd.allgather(tf.constant(1.0))),
        "can't be divided": (ValueError, lambda: hvd.alltoall(tf.ones([3]))),
        "add up": (ValueError, lambda: hvd.alltoall(tf.ones([3]), [1, 1])),
        "is not defined for bool": (ValueError, lambda: hvd.allreduce(tf.constant([True]))),
        "must be hvd.Compression": (TypeError, lambda: hvd.allreduce(1.0, compression="fp16")),
        "hvd.broadcast_variables": (RuntimeError, lambda: hvd.broadcast_global_variables(0)),
        "process_set_id=9": (ValueError, lambda: hvd.size_op(9)),
    }
    for words, (kind, call) in cases.items():
        with pytest.raises(kind, match=words):
            call()
        if kind is also:
            with pytest.raises(ValueError, match=words):
                call()
    with tf.Graph().as_default(), pytest.raises(also, match="not in use"):
        hvd.allreduce(tf.ones([1]), process_set=outsiders)
    assert hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy() == [hvd.size()]


def test_wrong_arguments_say_what_to_do(ranks):
    ranks(2).run(_wrong_arguments)


def _retraced() -> tuple[int, float, float]:
    """The last batch is smaller on rank 1, which alone traces its function a second time."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    weight = tf.Variable([float(hvd.rank())])
    traces, broadcasts = [], []

    @tf.function
    def step(batch, first):
        traces.append(1)
        if first:
            hvd.broadcast_variables([weight], 0)
            tf.py_function(lambda: broadcasts.append(1), [], [])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch * weight)
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [weight])
        weight.assign_sub(gradient)
        return hvd.allreduce(loss)

    for i in range(20):
        rows = 2 if i == 19 and hvd.rank() == 1 else 4
        step(tf.ones([rows]), i == 0)
    return len(traces), len(broadcasts), weight.numpy()[0]


def test_a_function_traced_again_on_one_rank_pairs_with_the_others(ranks):
    (traces0, broadcasts0, weight0), (traces1, broadcasts1, weight1) = ranks(2).run(_retraced)
    assert (traces0, traces1) == (2, 3)
    assert (broadcasts0, broadcasts1) == (1, 1)
    assert weight0 == weight1 == pytest.approx(-20.0)


def _many_in_a_graph(threads: int) -> None:
    """More collectives than TensorFlow has threads, which start them in any order."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    with tf.Graph().as_default():
        fed = tf.compat.v1.placeholder(tf.float32, [2])
        order = range(20) if hvd.rank() == 0 else reversed(range(20))
        sums = {i: hvd.allreduce(fed * i, op=hvd.Sum, name=f"sum.{i}") for i in order}
        of_the_sum = hvd.allgather(sums[3])
        with tf.compat.v1.Session(config=config) as session:
            for _ in range(3):
                got, gathered = session.run((sums, of_the_sum), {fed: [1.0, 2.0]})
                assert all(got[i].tolist() == [2.0 * i, 4.0 * i] for i in range(20))
                assert gathered.tolist() == [6.0, 12.0] * 2
            assert session.run(sums[5], {fed: [1.0, 1.0]}).tolist() == [10.0, 10.0]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_graph_may_start_its_collectives_in_any_order(ranks, threads):
    ranks(2).run(_many_in_a_graph, threads)


def _numbers() -> list[int]:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()

    @tf.function
    def ask(communicator):  # the module as an argument, as some programs pass it
        return [
            communicator.size_op(),
            communicator.rank_op(),
            communicator.local_rank_op(),
            communicator.local_size_op(),
            communicator.process_set_included_op(),
        ]

    assert hvd.broadcast_object({"rank": hvd.rank()}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(0)(hvd.rank()) == 0
    assert hvd.allgather_object(hvd.rank() * 2) == [0, 2]
    return [int(number) for number in ask(hvd)]


def test_numbers_and_objects(ranks):
    assert ranks(2).run(_numbers) == [[2, 0, 0, 2, 1], [2, 1, 1, 2, 1]]


def _process_set() -> list:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    pair = hvd.add_process_set([0, 2])
    try:
        found = None
        if pair.included():
            found = hvd.allreduce(tf.constant([float(hvd.rank())]), process_set=pair).numpy()[0]
            w = tf.Variable([float(hvd.rank())])
            hvd.broadcast_variables([w], 2, process_set=pair)
            assert w.numpy() == [2.0]
        with tf.GradientTape() as tape:
            x = tf.Variable([1.0])
            loss = x * (hvd.rank() + 1.0)
        tape = hvd.DistributedGradientTape(tape, process_set=pair)
        return [found, tape.gradient(loss, x).numpy()[0], hvd.size_op(pair.process_set_id).numpy()]
    finally:
        hvd.remove_process_set(pair)


def test_a_process_set_reduces_among_its_ranks(ranks):
    assert ranks(3).run(_process_set) == [[1.0, 2.0, 2], [None, 2.0, 2], [1.0, 2.0, 2]]


def _join() -> list:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    found = []
    for _ in range(1 + 2 * hvd.rank()):
        found.append(hvd.allreduce(tf.constant([4.0])).numpy()[0])
    return [found, hvd.join()]


def test_join_lets_a_rank_run_out_of_data(ranks):
    assert ranks(2).run(_join) == [[[4.0], 1], [[4.0, 2.0, 2.0], 1]]
