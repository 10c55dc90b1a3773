"""TensorFlow's and Keras's tensors on GPUs, for two ranks. Run with: pytest -m gpu"""

import pytest
from mpi import Ranks

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def tf_ranks():
    pytest.importorskip("tensorflow")
    pool = Ranks(2, {"TF_CPP_MIN_LOG_LEVEL": "3"})
    yield pool
    pool.stop()


def _start():
    """TensorFlow with this rank's GPU as the only one that it sees."""
    import os

    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < hvd.local_size():
        os.environ |= {"NCCL_HOSTID": f"rank {hvd.rank()}", "NCCL_SOCKET_IFNAME": "lo"}
    if len(tf.config.get_visible_devices("GPU")) > 1 or len(gpus) == 1:
        for each in gpus:
            tf.config.experimental.set_memory_growth(each, True)
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    return tf, hvd


def _as_on_the_cpu() -> list[str]:
    """Every operation, in eager code and in a tf.function, beside the same call on the CPU."""
    import numpy as np

    tf, hvd = _start()
    rank, wrong = hvd.rank(), []
    calls = {
        "broadcast": lambda x: hvd.broadcast(x, 1),
        "allgather": lambda x: hvd.allgather(x[: 3 + rank]),
        "alltoall": lambda x: hvd.alltoall(x[:9], [4, 5])[0],
        "grouped": lambda x: tf.concat(hvd.grouped_allreduce([x[:5], x[2:7]], op=hvd.Max), 0),
        "reducescatter": lambda x: hvd.reducescatter(tf.reshape(x, (-1, 4)), op=hvd.Sum),
        "scaled": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3),
        "empty": lambda x: hvd.allreduce(x[:0], op=hvd.Max),
        "mean": lambda x: hvd.allreduce(x),
        "product": lambda x: hvd.allreduce(x, op=hvd.Product),
    }
    dtypes = (
        tf.float16,
        tf.bfloat16,
        tf.float32,
        tf.float64,
        tf.int8,
        tf.uint8,
        tf.int16,
        tf.int32,
        tf.int64,
    )
    for dtype in dtypes:
        numbers = np.random.default_rng(rank).integers(0, 5, 1000)
        for name, call in calls.items():
            with tf.device("CPU:0"):
                expected = call(tf.cast(tf.constant(numbers), dtype))
            with tf.device("GPU:0"):
                mine = tf.identity(tf.cast(tf.constant(numbers), dtype))
            for way, function in {"eager": call, "graph": tf.function(call)}.items():
                result = function(mine)
                good = result.dtype == dtype and result.shape == expected.shape
                if not good or not np.allclose(
                    result.numpy().astype(float), expected.numpy().astype(float), rtol=1e-2
                ):
                    wrong.append(f"{way} {name} {dtype.name}: {result} instead of {expected}")
                if "GPU" not in result.backing_device and dtype != tf.int32:
                    wrong.append(f"{way} {name} {dtype.name}: on {result.backing_device}")
    return wrong


def test_as_on_the_cpu(tf_ranks):
    assert tf_ranks.run(_as_on_the_cpu) == [[], []]


def _by_nccl(tf, function) -> tuple:
    """The result of a function, and how many allreduces it has left to NCCL."""
    from hvdlite.gpu.nccl import NCCLCollectives

    count, plain = [], NCCLCollectives.allreduce
    NCCLCollectives.allreduce = lambda *args: (count.append(1), plain(*args))[1]
    try:
        return function(), len(count)
    finally:
        NCCLCollectives.allreduce = plain


def _gradients(kind: str) -> list:
    """Steps with a tape, beside those of one process that has the data of both ranks."""
    import numpy as np

    tf, hvd = _start()
    generator = np.random.default_rng(1)
    data = tf.constant(generator.normal(size=(2, 8, 6)), tf.float32)
    start = [generator.normal(size=shape).astype("float32") for shape in ((6, 4), (4,), (4, 1))]
    options = {"fp16": {"compression": hvd.Compression.fp16}, "sum": {"op": hvd.Sum}}.get(kind, {})

    def train(rows, wrap):
        weights = [tf.Variable(each) for each in start]
        constant = tf.Variable(1.0)

        def step():
            with tf.GradientTape() as tape:
                hidden = tf.tanh(rows @ weights[0] + weights[1])
                loss = tf.reduce_mean((hidden @ weights[2]) ** 2) + 3 * constant
            gradients = wrap(tape).gradient(loss, [*weights, constant])
            for weight, gradient in zip([*weights, constant], gradients, strict=True):
                weight.assign_sub(0.1 * gradient)

        run = step if kind == "eager" else tf.function(step)
        for _ in range(4):
            run()
        return [each.numpy() for each in (*weights, constant)]

    ours, used = _by_nccl(
        tf, lambda: train(data[hvd.rank()], lambda t: hvd.DistributedGradientTape(t, **options))
    )
    if kind == "sum":
        return [used == 4, True]
    alone = train(tf.reshape(data, (16, 6)), lambda tape: tape)
    close = all(
        np.allclose(mine, each, atol=1e-5 if kind != "fp16" else 1e-2)
        for mine, each in zip(ours, alone, strict=True)
    )
    return [used == 4, close]


@pytest.mark.parametrize("kind", ["eager", "graph", "fp16", "sum"])
def test_gradients(tf_ranks, kind):
    assert tf_ranks.run(_gradients, kind) == [[True, True]] * 2


def _fit(jit_compile) -> list:
    """Keras's fit, whose step XLA compiles before and after the collective."""
    import keras
    import numpy as np

    tf, hvd = _start()
    import hvdlite.keras

    # Each rank picks its convolutions by trying, and with TF32 they differ in the third digit.
    tf.config.experimental.enable_tensor_float_32_execution(False)

    def train(wrap, rows):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.BatchNormalization()]
        layers += [keras.layers.Flatten(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(wrap(keras.optimizers.SGD(0.1)), loss, jit_compile=jit_compile)
        images = np.random.default_rng(rows).normal(size=(64, 8, 8, 1)).astype("float32")
        model.fit(images, np.arange(64) % 3, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    wrap = hvdlite.keras.DistributedOptimizer
    # With the same data on both ranks the mean of the gradients is that of one.
    ours, used = _by_nccl(tf, lambda: train(wrap, 0))
    alone = train(lambda optimizer: optimizer, 0)
    same = all(np.allclose(a, b, atol=1e-4) for a, b in zip(ours, alone, strict=True))
    mine = train(wrap, hvd.rank())
    flat = np.concatenate([each.ravel() for each in mine[:2]])
    both = hvd.allgather(flat[np.newaxis]).numpy()
    return [used == 8, same, bool((both[0] == both[1]).all())]


@pytest.mark.parametrize("jit_compile", ["auto", True, False])
def test_keras_fit(tf_ranks, jit_compile):
    told = tf_ranks.run(_fit, jit_compile)
    assert told == [[True] * 3] * 2


def _out_of_memory() -> list:
    """One rank has no memory for the result; the other one waits for the GPU in TensorFlow."""
    import cupy

    tf, hvd = _start()
    mine, raised = tf.ones(1000), []
    hvd.allreduce(mine)
    if hvd.rank() == 1:
        from hvdlite import basics

        def fail(*_):
            raise cupy.cuda.memory.OutOfMemoryError(1, 2, 3)

        basics.engine().channels[0].lane.run = fail
    try:
        tf.function(lambda: hvd.allreduce(mine))()
        hvd.allreduce(mine)
    except hvd.HorovodInternalError as error:
        raised.append("OutOfMemory" in str(error))
    hvd.shutdown()
    hvd.init()
    return [*raised, float(tf.reduce_sum(hvd.allreduce(mine, op=hvd.Sum)))]


def test_a_failure_ends_on_all_ranks(tf_ranks):
    assert tf_ranks.run(_out_of_memory, timeout=60) == [[True, 2000.0]] * 2


def _elsewhere(first_call_on: str) -> list[str]:
    """Tensors on this rank's GPU, where the first call was on GPU 0 or on another rank's.

    Meanwhile the other GPU has much to do, and what it is to write still lies before it.
    """
    import numpy as np
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.shutdown()
    hvd.init()
    rank, wrong = hvd.rank(), []
    names = [each.name[-5:] for each in tf.config.list_logical_devices("GPU")]
    own = names[rank % len(names)]
    first = names[0] if first_call_on == "GPU 0" else names[(rank + 1) % len(names)]
    with tf.device(first):
        hvd.allreduce(tf.ones(1))
        much = tf.random.uniform((1024, 1024))
    calls = {
        "allgather": lambda x: hvd.allgather(x),
        "alltoall": lambda x: hvd.alltoall(x),
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "broadcast": lambda x: hvd.broadcast(x, 1),
    }
    numbers = np.random.default_rng(rank).integers(0, 5, (8, 16))
    expected = {}
    with tf.device("CPU:0"):
        for name, call in calls.items():
            expected[name] = call(tf.constant(numbers, tf.float32)).numpy()
    for _ in range(40):
        for name, call in calls.items():
            with tf.device(first):
                for _ in range(3):
                    much = much @ much * 1e-3
                for rows in (4, 8, 16):  # freed at once, and written to when `much` is there
                    _ = tf.ones((rows, 16)) * much[0, 0]
            with tf.device(own):
                result = call(tf.identity(tf.constant(numbers, tf.float32)))
            if own not in result.backing_device:
                wrong.append(f"{name} on {result.backing_device}")
            elif not np.array_equal(result.numpy(), expected[name]):
                wrong.append(f"{name}: {result.numpy().ravel()[:4]}")
    return wrong


@pytest.mark.parametrize("first_call_on", ["GPU 0", "the other rank's"])
def test_on_another_gpu_than_the_first_call(first_call_on):
    pytest.importorskip("tensorflow")
    pool = Ranks(2, {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"})
    try:
        assert pool.run(_elsewhere, first_call_on) == [[], []]
    finally:
        pool.stop()
