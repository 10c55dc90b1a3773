"""Programs of TensorFlow 1: tf_keras in a graph and a session, which Keras 3 does not know."""

import contextlib

import pytest
from keras_training import binding, numbers, small, train, weights

on_tf_keras = pytest.mark.parametrize("keras_ranks", ["tf_keras"], indirect=True)


@contextlib.contextmanager
def session():
    """A graph of its own, and the session that tf_keras then works in."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as made:
        v1.keras.backend.set_session(made)
        yield made


def _as_one_process() -> list:
    hvd, keras = binding()

    def make():
        return keras.optimizers.legacy.Adam(0.01)

    with session():
        ours = train(hvd, keras, make, hvd.DistributedOptimizer, parts=True)
    with session():
        alone = train(hvd, keras, make, lambda optimizer: optimizer, parts=False)
    return [ours, ours == pytest.approx(alone, abs=2e-5)]


@on_tf_keras
def test_trains_as_one_process(keras_ranks):
    zero, one = keras_ranks.run(_as_one_process, timeout=120)
    assert zero == one
    assert zero[1]


def _callbacks() -> list:
    """Ranks that start apart, with all callbacks; then a second session for the broadcast."""
    hvd, keras = binding()
    rank = hvd.rank()
    x, y = (part[:, rank].reshape(-1, part.shape[-1]) for part in numbers())
    own = []
    with session() as made:
        model = small(keras, seed=rank)
        optimizer = keras.optimizers.legacy.SGD(0.01, momentum=0.9)
        model.compile(hvd.DistributedOptimizer(optimizer), "mse")
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: own.append(logs["loss"])),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
            hvd.callbacks.LearningRateScheduleCallback(0.01, lambda _: 0.1, start_epoch=1),
        ]
        history = model.fit(x, y, 8, epochs=2, verbose=0, callbacks=callbacks).history
        state = [value.tolist() for value in made.run(model.optimizer.variables())]
        found = [weights(model), state, history["loss"], history["lr"]]
        found.append(float(hvd.allreduce(float(rank))))
    with session():
        model = small(keras, seed=rank)
        hvd.broadcast_global_variables(1)
        found.append(weights(model))
    return [own, *found]


@on_tf_keras
def test_the_callbacks_in_a_session(keras_ranks):
    (own0, *zero), (own1, *one) = keras_ranks.run(_callbacks, timeout=120)
    assert zero == one
    _, state, losses, rates, mean, _ = zero
    assert own0 != own1 and len(state) > 4
    assert losses == pytest.approx([(a + b) / 2 for a, b in zip(own0, own1, strict=True)])
    assert rates == pytest.approx([0.01, 0.001]) and mean == 0.5
