"""Ranks whose training ends or differs: one clear message on all of them, and nothing hangs."""

import pytest
from keras_training import binding, small
from mpi import launch

SCORES = [[3, 2, 1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6, 5, 4, 9, 9, 9]]  # rank 0 is done sooner


def _early_stopping() -> list:
    """With the same metrics on all ranks, all stop at the same epoch."""
    import numpy as np

    hvd, keras = binding()
    rank = hvd.rank()

    class Scores(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = float(SCORES[rank][epoch])

    model = small(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    callbacks = [
        Scores(),
        hvd.callbacks.MetricAverageCallback(),
        keras.callbacks.EarlyStopping(monitor="score", patience=0, mode="min"),
    ]
    x, y = np.full((8, 4), 1.0 + rank, "float32"), np.zeros((8, 2), "float32")
    return model.fit(x, y, epochs=9, verbose=0, callbacks=callbacks).history["score"]


def test_early_stopping_on_averaged_metrics_stops_all_ranks_together(keras_ranks):
    for scores in keras_ranks.run(_early_stopping, timeout=120):
        assert scores == [6.0, 5.0, 4.0, 4.0]


def test_early_stopping_of_one_rank_ends_the_others_with_advice():
    outcome = launch(
        """
        import numpy as np
        from tensorflow import keras
        import hvdlite.tensorflow.keras as hvd

        hvd.init()
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0)
        x = np.ones((8, 4), "float32")
        data = x, x[:, :1]

        class Improves(keras.callbacks.Callback):  # on rank 1, three epochs longer
            def on_epoch_end(self, epoch, logs=None):
                logs["val_loss"] -= min(epoch, 5) if hvd.rank() else min(epoch, 2)

        callbacks = [Improves(), stop]
        model.fit(*data, validation_data=data, epochs=9, verbose=0, callbacks=callbacks)
        print("rank", hvd.rank(), "stopped at", stop.stopped_epoch, flush=True)
        """,
        2,
        timeout=120,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert outcome.returncode != 0, outcome
    assert "rank 0 stopped at 3" in outcome.stdout and "rank 1 stopped" not in outcome.stdout
    assert "rank 0 has ended its program" in outcome.stderr, outcome
    assert "put hvd.callbacks.MetricAverageCallback() before EarlyStopping" in outcome.stderr


def _models_that_differ() -> list[str]:
    """Errors inside a graph: in `fit`, and in a tape inside a tf.function."""
    import numpy as np
    import tensorflow as tf

    hvd, keras = binding()
    import hvdlite.tensorflow

    x, y = np.ones((8, 4), "float32"), np.zeros((8, 2), "float32")
    told = []

    def fit(width: int):
        model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(2)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        return model.fit(x, y, epochs=1, verbose=0).history["loss"]

    @tf.function
    def step(variables):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each * each) for each in variables])
        return hvdlite.tensorflow.DistributedGradientTape(tape).gradient(loss, variables)

    shapes = [[2], [3 + hvd.rank()]]
    for wrong, right in (
        (lambda: fit(3 + hvd.rank()), lambda: fit(3)),
        (
            lambda: step([tf.Variable(tf.ones(shape)) for shape in shapes]),
            lambda: step([tf.Variable(tf.ones([2])), tf.Variable(tf.ones([3]))]),
        ),
    ):
        with pytest.raises(tf.errors.OpError) as error:
            wrong()
        words = str(error.value)
        told.append(words[words.index("HorovodInternalError: ") :].splitlines()[0])
        right()  # the process goes on
    return told


def test_models_that_differ_are_told_to_all_ranks(keras_ranks):
    zero, one = keras_ranks.run(_models_that_differ, timeout=120)
    assert zero == one
    for told in zero:
        assert "the ranks disagree on the shape" in told
        assert "build the same model on every rank" in told
