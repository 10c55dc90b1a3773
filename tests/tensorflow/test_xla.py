"""Collectives in functions that XLA compiles, on the CPU."""

from twin import FLOATS, INTEGERS, OPS, data, twin


def _every_op() -> list[str]:
    """Each op whose result has a known shape, for each dtype, against the twin."""
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    size, rank, wrong = hvd.size(), hvd.rank(), []
    for dtype in [*FLOATS, *INTEGERS, "uint16"]:
        parts = [data(dtype, 12, r, 5).reshape(6, 2) for r in range(size)]

        @tf.function(jit_compile=True, autograph=False)
        def program(mine):
            made = {name: hvd.allreduce(mine, op=op) for name, op in OPS.items()}
            made["grouped"] = hvd.grouped_allreduce([mine, mine[0]], op=hvd.Max)[1]
            made["scalar"] = hvd.allreduce(mine[1, 1], op=hvd.Max)
            made["empty"] = hvd.allreduce(mine[:0], op=hvd.Sum)
            return made | {"broadcast": hvd.broadcast(mine, 1)}

        right = {name: twin(name, parts, size) for name in OPS}
        right["grouped"] = twin("Max", [part[0] for part in parts], size)
        right["scalar"] = twin("Max", [part[1, 1] for part in parts], size)
        right |= {"broadcast": parts[1], "empty": parts[0][:0]}
        for name, got in program(tf.constant(parts[rank])).items():
            if got.dtype.name != dtype or not np.array_equal(got.numpy(), right[name]):
                wrong.append(f"{name} {dtype}: {got} instead of {right[name]}")
    return wrong


def test_every_op(ranks):
    assert ranks(2).run(_every_op, timeout=120) == [[]] * 2


def _order() -> list[bool]:
    """Unnamed calls come in the order of the program, whatever each of them is made of."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    mine = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
    total = tf.constant([3.0, 6.0])

    @tf.function(jit_compile=True)
    def program(x):
        for _ in tf.range(2):
            hvd.allreduce(x * 5, op=hvd.Min)  # whose result nobody uses
            x = hvd.allreduce(x, op=hvd.Sum)
        if x[0] > 0.0:
            x = hvd.broadcast(x, 0) + hvd.allreduce(x)
        return x

    first = program(mine)  # its program is there before `function` is
    other = tf.function(lambda x: hvd.allreduce(x, op=hvd.Max), jit_compile=True)

    @tf.function
    def function(x):
        rows = hvd.allgather(x[tf.newaxis])  # no program of XLA
        return rows, program(x), hvd.allreduce(x, op=hvd.Sum), other(x)

    rows, again, summed, largest = function(mine)
    expected = [(first, 4 * total), (again, 4 * total), (summed, total)]
    expected += [(largest, [2.0, 4.0]), (rows, [[1.0, 2.0], [2.0, 4.0]])]
    return [bool(tf.reduce_all(got == right)) for got, right in expected]


def test_calls_keep_their_order(ranks):
    assert ranks(2).run(_order, timeout=60) == [[True] * 5] * 2


def _gradients() -> list:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x * x) + hvd.broadcast(3 * x, 1)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    def of_tape(x):
        weight = tf.ones([2])
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = tf.reduce_sum(weight * x)
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0]

    mine = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
    return [
        tf.function(each, jit_compile=compiled)(mine).numpy().tolist()
        for each in (gradient, of_tape)
        for compiled in (False, True)
    ]


def test_gradients_are_those_without_xla(ranks):
    for plain, compiled, plain_tape, compiled_tape in ranks(2).run(_gradients, timeout=60):
        assert compiled == plain and compiled_tape == plain_tape == [1.5, 3.0]


def _failures() -> list:
    """What is raised, and that the ranks go on."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    raised = []

    def tries(function, *args) -> None:
        try:
            tf.function(function, jit_compile=True)(*args)
            raised.append("nothing")
        except Exception as error:
            raised.append(f"{type(error).__name__}: {str(error).splitlines()[-1]}")

    tries(lambda: hvd.allgather(tf.ones(3)))
    tries(lambda: hvd.allreduce(tf.ones(3) > 0, op=hvd.Sum))
    tries(lambda x: hvd.allreduce(x, name="differs"), tf.ones(3 + hvd.rank()))
    hvd.shutdown()
    hvd.init()
    again = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum), jit_compile=True)
    return [*raised, again().numpy().tolist()]


def test_failures(ranks):
    for shape, dtype, differs, again in ranks(2).run(_failures, timeout=60):
        assert "ValueError: XLA has to know all shapes" in shape
        assert "bool" in dtype and not dtype.startswith("nothing")
        assert differs.startswith("HorovodInternalError: allreduce 'differs': the ranks disagree")
        assert again == [2.0, 2.0]


def _freed() -> tuple[int, int]:
    import gc

    import tensorflow as tf

    import hvdlite.tensorflow  # noqa: F401
    from hvdlite.tensorflow import xla

    assert xla.is_available()
    before, mine = len(xla._bodies), tf.ones([2])
    for i in range(3):

        def program(x, i=i):  # not one of hvd's: TensorFlow keeps custom gradients for ever
            return xla.custom_call(lambda array: [array + i], [x], [x.dtype], [x.shape], None)

        result = tf.function(program, jit_compile=True, autograph=False)(mine)
        assert result[0].numpy().tolist() == [1.0 + i] * 2
    del program
    gc.collect()
    return before, len(xla._bodies)


def test_what_a_program_calls_ends_with_it(ranks):
    for before, after in ranks(2).run(_freed, timeout=60):
        assert after == before


def _fit(compiled: bool) -> list:
    """A model that makes collective calls itself, in a layer of ours and in one of its own."""
    import keras
    import numpy as np

    import hvdlite.tensorflow.keras as hvd
    from hvdlite.tensorflow import SyncBatchNormalization, allreduce

    hvd.init()
    keras.utils.set_random_seed(1)

    class Centered(keras.layers.Layer):
        def call(self, x):
            return x - allreduce(keras.ops.mean(x, axis=0))

    layers = [keras.Input((6,)), keras.layers.Dense(5), SyncBatchNormalization()]
    model = keras.Sequential([*layers, Centered(), keras.layers.Dense(3)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", jit_compile=compiled)
    numbers = np.random.default_rng(hvd.rank()).normal(size=(32, 9)).astype("float32")
    model.fit(numbers[:, :6], numbers[:, 6:], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [weight.tolist() for weight in model.get_weights()]


def test_keras_compiles_a_step_with_collectives(ranks):
    import numpy as np

    compiled, plain = (ranks(2).run(_fit, each, timeout=120) for each in (True, False))
    assert compiled[0] == compiled[1], "the same weights on both ranks"
    for mine, other in zip(compiled[0], plain[0], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)


def _scopes():
    """What a function takes for its device, by where `with tf.device` stands."""
    import tensorflow as tf

    from hvdlite.tensorflow import gpu

    seen = []

    def look():
        seen.append(gpu.scope())

    def look_on(device):
        with tf.device(device):
            look()

    for device in ("/gpu:1", "/cpu:0"):
        with tf.device(device):
            tf.function(look, autograph=False).get_concrete_function()
        with tf.device("/gpu:0"):
            tf.function(look_on, autograph=False).get_concrete_function(device)
    return seen


def test_a_function_knows_its_device(ranks):
    assert ranks(2).run(_scopes) == [["GPU:1"] * 2 + ["CPU:0"] * 2] * 2
