"""What Horovod's Keras programs do."""

import pytest
from keras_training import binding, numbers, small, weights


def _values() -> list:
    """Numbers and lists, as programs pass them."""
    hvd, _ = binding()
    rank = hvd.rank()
    resume = hvd.broadcast(5 if rank == 0 else 0, 0, name="resume_from_epoch")
    score = hvd.allreduce([0.5 + rank, 1.0])
    average = hvd.allreduce(float(rank), average=True, name="score")
    total = hvd.allreduce(float(rank), average=False)
    gathered = hvd.allgather([[rank, rank]])
    piece = hvd.reducescatter([2.0, 4.0], op=hvd.Sum)
    return [
        list(range(resume, 7)),
        [float(value) for value in score],
        float(average),
        float(total),
        [list(map(int, row)) for row in gathered],
        [float(value) for value in piece],
    ]


def test_collectives_on_values(keras_ranks):
    zero, one = keras_ranks.run(_values)
    assert zero[:5] == one[:5] == [[5, 6], [1.0, 1.0], 0.5, 1.0, [[0, 0], [1, 1]]]
    assert (zero[5], one[5]) == ([4.0], [8.0])


def _facts() -> list:
    """What programs print about the installation, and variables that are not built yet."""
    import keras

    hvd, tf_keras = binding()
    import hvdlite
    import hvdlite.keras
    import hvdlite.tensorflow

    for each in (hvd, hvdlite.keras, hvdlite.tensorflow):
        assert each.__version__ == hvdlite.__version__
        for name in ("cuda", "rocm", "mpi", "gloo", "ccl", "ddl"):
            assert getattr(each, f"{name}_built")() in (True, False)
        assert type(each.nccl_built()) is int  # its version
    hvdlite.tensorflow.broadcast_variables(keras.Sequential().variables, root_rank=0)
    hvdlite.tensorflow.broadcast_variables(keras.layers.Dense(2).variables, root_rank=0)
    return [keras.__version__[0], getattr(tf_keras, "__version__", "2")[0]]


def test_facts_and_models_without_variables(keras_ranks):
    kinds = keras_ranks.run(_facts)
    assert kinds[0] == kinds[1] and kinds[0][0] == "3"  # `keras` is Keras 3 in any case


def _standalone() -> list:
    """`horovod.keras` serves the package keras, whatever tf.keras is."""
    import keras

    import hvdlite.keras as hvd

    hvd.init()
    model = small(keras, seed=hvd.rank())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", metrics=["mae"])
    x, y = (part[:, hvd.rank()].reshape(-1, part.shape[-1]) for part in numbers())
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=1, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(multiplier=0.1, start_epoch=1),
    ]
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks).history
    score = hvd.allreduce(model.evaluate(x, y, verbose=0))  # a list: the loss and the metric
    return [history["loss"], [float(value) for value in score], weights(model)]


def test_standalone_keras(keras_ranks):
    zero, one = keras_ranks.run(_standalone, timeout=120)
    assert zero == one
    assert len(zero[1]) == 2


def _as_documented() -> list:
    """What Horovod's documentation told people to write, which tf_keras still takes."""
    import tensorflow as tf

    hvd, keras = binding()
    if hasattr(keras, "__version__"):
        return []  # Keras 3
    model = small(keras, seed=hvd.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(lr=0.05 * hvd.size()))
    model.compile(optimizer, "mse", metrics=["mae"], experimental_run_tf_function=False)
    x, y = (part[:, hvd.rank()] for part in numbers())

    def batches():
        while True:
            yield from zip(x, y, strict=True)

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit_generator(batches(), steps_per_epoch=3, epochs=1, verbose=0, callbacks=callbacks)
    new = keras.optimizers.SGD(0.1)
    new.build(model.trainable_variables)
    import hvdlite.tensorflow

    @tf.function
    def first_batch():
        hvdlite.tensorflow.broadcast_variables(new.variables(), root_rank=0)

    first_batch()
    scores = hvd.allreduce(model.evaluate_generator(batches(), 3))
    rate = float(model.optimizer.learning_rate.numpy())
    return [len(scores), rate, weights(model)]


def test_programs_as_documented_run_on_the_older_keras(keras_ranks, request):
    results = keras_ranks.run(_as_documented, timeout=120)
    assert results[0] == results[1]
    if "tf_keras" in request.node.name:
        assert results[0][:2] == [2, pytest.approx(0.1)]
