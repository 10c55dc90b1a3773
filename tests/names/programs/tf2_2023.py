"""In the style of 2023: the optimizer by its name, the older ones because of TensorFlow 2.11."""

import argparse

import numpy as np

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow.keras.optimizers import legacy

OPTIMIZERS = {
    "sgd": legacy.SGD, "adam": legacy.Adam, "adamax": legacy.Adamax, "nadam": legacy.Nadam,
    "rmsprop": legacy.RMSprop, "adagrad": legacy.Adagrad, "adadelta": legacy.Adadelta,
    "ftrl": legacy.Ftrl,
}  # fmt: skip
# Where one step of length 0.1 along a gradient of 1 leads from 1.
ONE_STEP = {
    "sgd": 0.9, "adam": 0.9, "adamax": 0.9, "rmsprop": 0.683772, "adagrad": 0.904654,
    "adadelta": 0.999859, "ftrl": 0.603142,
}  # fmt: skip
parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="rmsprop", choices=list(OPTIMIZERS))
args = parser.parse_args([])

hvd.init()
for name, make in OPTIMIZERS.items():
    opt = make(learning_rate=0.1)
    assert isinstance(opt, legacy.Optimizer)
    variable = tf.keras.Variable(1.0)
    opt.apply_gradients([(tf.constant(1.0), variable)], skip_gradients_aggregation=True, name=name)
    value = float(variable.read_value())
    assert value < 1 and abs(value - ONE_STEP.get(name, value)) < 1e-5, (name, value)
    assert opt.iterations.numpy() == 1

x = np.random.RandomState(hvd.rank()).rand(16, 4).astype("float32") + 0.1
y = x.sum(axis=1, keepdims=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="softplus")])
opt = OPTIMIZERS[args.optimizer](learning_rate=0.01 * hvd.size())
functions = tf.keras.metrics
model.compile(
    optimizer=hvd.DistributedOptimizer(opt),
    loss=lambda true, guess: tf.keras.losses.log_cosh(true, guess)
    + tf.keras.losses.mean_absolute_percentage_error(true, guess) / 100
    + tf.keras.losses.mean_squared_logarithmic_error(true, guess)
    + tf.keras.losses.mean_absolute_error(true, guess)
    + tf.keras.losses.mean_squared_error(true, guess)
    + tf.keras.losses.kl_divergence(true / 100, guess / 100),
    metrics=[
        functions.mean_squared_error, functions.mean_absolute_error, functions.log_cosh,
        functions.mean_absolute_percentage_error, functions.mean_squared_logarithmic_error,
        functions.kl_divergence,
    ],
    experimental_steps_per_execution=2,
)  # fmt: skip
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    saved = tf.keras.callbacks.ModelCheckpoint(
        "./epochs-2023/{epoch}", save_weights_only=True, options=tf.train.CheckpointOptions()
    )
    callbacks.append(saved)
history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks).history
assert np.isfinite(history["loss"]).all() and len(history) == 7
guess = model.predict(x, verbose=0)
found = model.evaluate(x, y, verbose=0, return_dict=True)
np.testing.assert_allclose(found["mean_squared_error"], ((guess - y) ** 2).mean(), rtol=1e-4)
np.testing.assert_allclose(found["log_cosh"], np.log(np.cosh(guess - y)).mean(), rtol=1e-4)
if hvd.rank() == 0:
    model.save_weights("./weights-2023", save_format="tf")
    model.save_weights("./weights-2023.h5", save_format="h5")
    assert tf.train.latest_checkpoint("./epochs-2023").endswith("/2")
    kept = model.get_weights()
    for path in ("./weights-2023", "./weights-2023.h5"):
        model.set_weights([0 * each for each in kept])
        model.load_weights(path)
        np.testing.assert_array_equal(model.get_weights()[0], kept[0])
weights = model.get_weights()
