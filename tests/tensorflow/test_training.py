"""Training with tapes and with the optimizers of TensorFlow 1, against one process."""

import pytest


def problem():
    """Variables, a loss over a batch, and the batches of each step: [step, rank, row, column]."""
    import numpy as np
    import tensorflow as tf

    numbers = np.random.default_rng(3)
    start = [numbers.normal(size=(4, 5)), numbers.normal(size=(5,))]
    batches = numbers.normal(size=(4, 2, 3, 4)).astype("float32")

    def loss(variables, batch):
        weight, bias = variables
        return tf.reduce_mean(tf.tanh(batch @ weight + bias) ** 2)

    return [value.astype("float32") for value in start], loss, batches


def as_lists(variables) -> list[list]:
    return [variable.numpy().tolist() for variable in variables]


def flat(values: list) -> list:
    return sum(values, []) if isinstance(values[0], list) else values


def _tape(options: dict, traced: bool) -> tuple[list, list]:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    start, loss, batches = problem()
    results = []
    for distributed in (True, False):
        variables = [tf.Variable(value) for value in start]

        def step(batch, variables=variables, distributed=distributed):
            with tf.GradientTape() as tape:
                value = loss(variables, batch)
            if distributed:
                tape = hvd.DistributedGradientTape(tape, **options)
            for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
                variable.assign_sub(0.5 * gradient)

        step = tf.function(step) if traced else step
        for batch in batches:
            step(batch[hvd.rank()] if distributed else batch.reshape(-1, 4))
        results.append(as_lists(variables))
    return tuple(results)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("options", [{}, {"gradient_predivide_factor": 2.0}, {"compression": True}])
def test_a_tape_trains_as_one_process(ranks, options, traced):
    results = ranks(2).run(_with_compression, options, traced)
    tolerance = 1e-2 if "compression" in options else 1e-5
    for ours, alone in results:
        assert ours == results[0][0]  # bit-equal on all ranks
        for mine, other in zip(ours, alone, strict=True):
            assert flat(mine) == pytest.approx(flat(other), abs=tolerance)


def _with_compression(options: dict, traced: bool) -> tuple[list, list]:
    import hvdlite.tensorflow as hvd

    if options.get("compression"):
        options = {"compression": hvd.Compression.fp16}
    return _tape(options, traced)


def _structures() -> list:
    """Sources as a list, a dict, one variable; unconnected ones; a persistent tape."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    a, b, c = tf.Variable([1.0]), tf.Variable([2.0]), tf.Variable([3.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = (a * a + 3.0 * b) * (hvd.rank() + 1.0)
    named = tape.gradient(loss, {"a": a, "b": b, "c": c})
    assert named["c"] is None
    single = tape.gradient(loss, a)
    kept = named["a"].numpy().tolist()
    tape.gradient(loss, [b])
    assert named["a"].numpy().tolist() == kept  # a later reduction does not change it
    partial = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[])
    with partial:
        loss = a * (hvd.rank() + 1.0)
    partial.register_local_source(a)
    local = partial.gradient(loss, [a])[0]
    both = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[])
    with both:
        loss = (a + b) * (hvd.rank() + 1.0)
    both.register_local_source(a)
    [(of_a, kept_local)], [(of_b, reduced)] = both.get_local_and_global_gradients(loss, [a, b])
    assert of_a is a and of_b is b and reduced.numpy().tolist() == [1.5]
    assert kept_local.numpy().tolist() == local.numpy().tolist()
    return [kept, named["b"].numpy().tolist(), single.numpy().tolist(), local.numpy().tolist()]


def test_what_a_tape_gives_has_the_structure_of_its_sources(ranks):
    for rank, found in enumerate(ranks(2).run(_structures)):
        assert found == [[3.0], [4.5], [3.0], [(rank + 1) / 2]]


def _sparse(as_dense: bool) -> list:
    """An embedding: ranks look up different rows, one row both, one row twice."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    rows = tf.constant([[0, 1, 1], [1, 3, 3]][hvd.rank()])
    table = tf.Variable(tf.ones([5, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, rows) ** 2)
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense)
    gradient = tape.gradient(loss, table)
    dense = tf.convert_to_tensor(gradient).numpy()[:, 0].tolist()
    return [type(gradient).__name__, dense]


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(ranks, as_dense):
    kind = "EagerTensor" if as_dense else "IndexedSlices"
    assert ranks(2).run(_sparse, as_dense) == [[kind, [1.0, 3.0, 0.0, 2.0, 0.0]]] * 2


def _v1(name: str, how: str, options: dict) -> tuple[list, list]:
    """Train in a graph of TensorFlow 1; `how` the gradients reach the optimizer."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    v1 = tf.compat.v1
    start, loss, batches = problem()
    passes = options.get("backward_passes_per_step", 1)
    results = []
    for distributed in (True, False):
        with tf.Graph().as_default():
            fed = v1.placeholder(tf.float32, [None, 4])
            variables = [
                v1.get_variable(f"v{i}", initializer=value * (1 + hvd.rank() * distributed))
                for i, value in enumerate(start)
            ]
            kinds = {"momentum": lambda: v1.train.MomentumOptimizer(0.5, 0.9)}
            kinds["adam"] = lambda: v1.train.AdamOptimizer(0.1)
            kinds["sgd"] = lambda: v1.train.GradientDescentOptimizer(0.5)
            optimizer = kinds[name]()
            kind = type(optimizer)
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer, **options)
                assert isinstance(optimizer, kind)
            value = loss(variables, fed)
            if how == "minimize":
                train = optimizer.minimize(value)
            else:
                if how == "own compute":
                    gradients, _ = zip(*optimizer.compute_gradients(value), strict=True)
                else:
                    gradients = tf.gradients(value, variables)
                if how == "own compute":  # clipping what is reduced already
                    gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
                train = optimizer.apply_gradients(zip(gradients, variables, strict=True))
            start_alike = hvd.broadcast_global_variables(0) if distributed else tf.no_op()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(start_alike)
                if distributed or passes == 1:
                    for batch in batches:
                        mine = batch[hvd.rank()] if distributed else batch.reshape(-1, 4)
                        session.run(train, {fed: mine})
                else:
                    for i in range(0, len(batches), passes):
                        session.run(train, {fed: batches[i : i + passes].reshape(-1, 4)})
                results.append([each.tolist() for each in session.run(variables)])
    return tuple(results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how", "options"),
    [
        ("momentum", "minimize", {}),
        ("adam", "own compute", {}),
        ("sgd", "plain gradients", {}),
        (
            "momentum",
            "minimize",
            {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
        ),
    ],
)
def test_the_optimizers_of_tensorflow_1(ranks, name, how, options):
    results = ranks(2).run(_v1, name, how, options, timeout=120)
    for ours, alone in results:
        assert ours == results[0][0]
        for mine, other in zip(ours, alone, strict=True):
            flat = (
                [mine, other] if not isinstance(mine[0], list) else [sum(mine, []), sum(other, [])]
            )
            assert flat[0] == pytest.approx(flat[1], abs=1e-4)


def _both() -> list:
    """A tape and an optimizer that both reduce: the user is told."""
    import warnings

    import keras
    import tensorflow as tf

    import hvdlite.keras
    import hvdlite.tensorflow as hvd

    hvd.init()
    x = keras.Variable([1.0])
    optimizer = hvdlite.keras.DistributedOptimizer(keras.optimizers.SGD(1.0))
    told = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with tf.GradientTape() as tape:
                loss = x.value * (hvd.rank() + 1.0)
            tape = hvd.DistributedGradientTape(tape)
            optimizer.apply(tape.gradient(loss, [x.value]), [x])
            told.append([str(each.message) for each in caught if "reduced" in str(each.message)])
    return told


def test_reducing_twice_is_told_once(ranks):
    for first, second in ranks(2).run(_both):
        assert len(first) == 1 and "use either" in first[0]
        assert second == []


def _adasum() -> list:
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    a = np.float32([[1, 0], [0, 1]][hvd.rank()])  # at right angles: Adasum adds them up
    added = hvd.allreduce(a, op=hvd.Adasum).numpy().tolist()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.get_variable("x", initializer=[1.0, 1.0])
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
        train = optimizer.minimize(tf.reduce_sum(x * a))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        return [added, session.run(x).tolist()]


def test_adasum(ranks):
    assert ranks(2).run(_adasum) == [[[1.0, 1.0], [0.5, 0.5]]] * 2


def _adasum_of_a_set() -> list | None:
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    outer = hvd.add_process_set([0, 2])
    if hvd.rank() == 1:
        return None  # has no part in it
    a = np.float32([[1, 0], [], [0, 1]][hvd.rank()])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.get_variable("x", initializer=[1.0, 1.0])
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, process_set=outer)
        train = optimizer.minimize(tf.reduce_sum(x * a))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        return session.run(x).tolist()


def test_adasum_of_a_process_set(ranks):
    assert ranks(3).run(_adasum_of_a_set) == [[0.5, 0.5], None, [0.5, 0.5]]


def _sync_batch_norm(mean: float, sigma: float) -> tuple[list, list]:
    """Output, gradient and moving statistics, and those of one process with the joined batch."""
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    whole = np.random.default_rng(1).normal(mean, sigma, (8, 4)).astype("float32")
    share = slice(0, 3) if hvd.rank() == 0 else slice(3, 8)
    found = []
    for layer, batch in (
        (hvd.SyncBatchNormalization(epsilon=1e-9), whole[share]),
        (tf.keras.layers.BatchNormalization(epsilon=1e-9), whole),
    ):
        batch = tf.constant(batch)
        with tf.GradientTape() as tape:
            tape.watch(batch)
            output = layer(batch, training=True)
            loss = tf.reduce_sum(output**3)
        gradient = tape.gradient(loss, batch) * sigma
        parts = [output, gradient, layer.moving_mean, layer.moving_variance]
        found.append([np.array(part) for part in parts])
    layer = hvd.SyncBatchNormalization()
    if hvd.rank() == 0:
        layer(tf.constant(whole))  # alone: evaluation does not communicate
    ours, alone = found
    return (
        [part.tolist() for part in ours],
        [alone[0][share].tolist(), alone[1][share].tolist(), *(x.tolist() for x in alone[2:])],
    )


@pytest.mark.parametrize(("mean", "sigma", "tolerance"), [(2.0, 3.0, 1e-4), (1000.0, 0.1, 0.05)])
def test_sync_batch_normalization_is_that_of_the_joined_batch(ranks, mean, sigma, tolerance):
    for ours, alone in ranks(2).run(_sync_batch_norm, mean, sigma):
        for mine, other in zip(ours, alone, strict=True):
            assert flat(mine) == pytest.approx(flat(other), abs=tolerance)
