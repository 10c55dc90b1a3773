"""Ranks whose training ends or differs: one clear message on all of them, and nothing hangs."""

import pytest
from keras_training import binding, small
from mpi import KERAS, launch

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
        modules=KERAS,
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
        with pytest.raises(hvd.HorovodInternalError) as error:
            wrong()
        assert isinstance(error.value, tf.errors.OpError)
        told.append(str(error.value))
        right()  # the process goes on
    return told


def test_models_that_differ_are_told_to_all_ranks(keras_ranks):
    zero, one = keras_ranks.run(_models_that_differ, timeout=120)
    assert zero == one
    of_fit, of_tape = zero
    for rank in (0, 1):
        assert f"float32 of shape (4, {3 + rank}), on rank {rank}" in of_fit and "kernel" in of_fit
    assert "float32 of shape (3,), on rank 0; 'Variable:0', float32 of shape (4,), on" in of_tape
    for told in zero:
        assert "Build the same model on every rank" in told


def test_a_rank_with_fewer_steps_ends_the_others_at_their_own_line():
    outcome = launch(
        """
        import numpy as np
        import tensorflow as tf
        import keras
        import hvdlite.tensorflow as hvdtf
        import hvdlite.keras as hvd

        hvd.init()
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        x = np.ones((16 - 8 * hvd.rank(), 4), "float32")

        def fit():
            model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0)

        if hvd.rank() == 1:
            fit()
        else:
            ones = tf.ones([1])
            ways = fit, tf.function(lambda: hvdtf.allreduce(ones)), lambda: hvdtf.allreduce(ones)
            for way in ways:
                try:
                    way()
                except hvd.HorovodInternalError as error:
                    print("caught:", error, flush=True)
            fit()  # the line
        """,
        2,
        timeout=120,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert outcome.returncode != 0, outcome
    caught = [line for line in outcome.stdout.splitlines() if line.startswith("caught: ")]
    assert len(caught) == 3 and all("rank 1 has ended its program" in line for line in caught)
    told = outcome.stderr[outcome.stderr.rindex("Traceback") :].splitlines()
    told = [line for line in told if line.strip(" ^~")]
    assert "program.py" in told[1] and told[2].strip().startswith("fit()"), outcome
    assert "program.py" in told[3] and "model.fit(" in told[4], outcome
    assert told[5].startswith("hvdlite.") and "rank 1 has ended its program" in told[5], outcome
    assert not any("site-packages" in each for each in told[:6])
