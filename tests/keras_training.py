"""A small Keras model and its data, for tests that compare ranks with one process."""


def binding():
    import tensorflow as tf

    import hvdlite.tensorflow.keras as hvd

    hvd.init()
    return hvd, tf.keras


def small(keras, seed: int = 3):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(5, activation="tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(2)])


def numbers(rows: int = 48):
    """x and y of all ranks: [steps, ranks, rows of a batch, columns]."""
    import numpy as np

    generator = np.random.default_rng(5)
    x = generator.normal(size=(3, 2, rows // 6, 4)).astype("float32")
    return x, (x.sum(-1, keepdims=True) * [1.0, -1.0]).astype("float32")


def weights(model) -> list[float]:
    return [float(value) for each in model.get_weights() for value in each.flatten()]


def train_alone(hvd, keras, make) -> list[float]:
    """What one process makes of all rows; eagerly, since building a graph takes longest."""
    return train(hvd, keras, make, lambda optimizer: optimizer, parts=False, run_eagerly=True)


def train(hvd, keras, make, wrap, parts, **compile_options) -> list[float]:
    """Fit a fresh model on all rows, or on this rank's part of them; its weights."""
    model = small(keras)
    model.compile(wrap(make()), "mse", **compile_options)
    x, y = numbers()
    if parts:
        x, y = x[:, hvd.rank()], y[:, hvd.rank()]
    rows = x.shape[-2] * (1 if parts else 2)
    model.fit(
        x.reshape(-1, 4), y.reshape(-1, 2), batch_size=rows, epochs=2, shuffle=False, verbose=0
    )
    return weights(model)
