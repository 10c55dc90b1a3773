"""In the style of 2019 and 2.0: TensorFlow 1 brought along, values by hand."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

tf.enable_v2_behavior()
tf.enable_resource_variables()
hvd.init()
if hvd.rank() == 0:
    print("TensorFlow", tf.VERSION, tf.GIT_VERSION, "built with", tf.COMPILER_VERSION)
assert tf.VERSION == tf.__version__ and tf.executing_eagerly()
tf.set_random_seed(7)
first = tf.random.uniform([2])
tf.set_random_seed(7)
np.testing.assert_array_equal(first, tf.random.uniform([2]))

x = np.random.RandomState(hvd.rank()).rand(8, 3).astype("float32") + 0.5
counts = tf.constant([1.7, 2.2])
assert tf.to_int32(counts).dtype == tf.int32 and tf.to_int64(counts).numpy().tolist() == [1, 2]
assert tf.to_double(counts).dtype == tf.float64 and tf.to_float(tf.to_int32(counts))[0] == 1.0
np.testing.assert_allclose(tf.log(x), np.log(x), rtol=1e-5)

# Each loss and metric by hand, of two rows.
y, z = x[:2], x[2:4]
p, q = y / y.sum(axis=1, keepdims=True), z / z.sum(axis=1, keepdims=True)
by_hand = {
    "kl_divergence": (p, q, (p * np.log(p / q)).sum(axis=1)),
    "log_cosh": (y, z, np.log(np.cosh(z - y)).mean(axis=1)),
    "mean_absolute_error": (y, z, abs(y - z).mean(axis=1)),
    "mean_absolute_percentage_error": (y, z, 100 * (abs(y - z) / y).mean(axis=1)),
    "mean_squared_error": (y, z, ((y - z) ** 2).mean(axis=1)),
    "mean_squared_logarithmic_error": (y, z, ((np.log1p(y) - np.log1p(z)) ** 2).mean(axis=1)),
}
losses, metrics = tf.keras.losses, tf.keras.metrics
for functions in (
    [losses.kl_divergence, losses.log_cosh, losses.mean_absolute_error,
     losses.mean_absolute_percentage_error, losses.mean_squared_error,
     losses.mean_squared_logarithmic_error],
    [metrics.kl_divergence, metrics.log_cosh, metrics.mean_absolute_error,
     metrics.mean_absolute_percentage_error, metrics.mean_squared_error,
     metrics.mean_squared_logarithmic_error],
):  # fmt: skip
    for function, (true, guess, wanted) in zip(functions, by_hand.values()):
        np.testing.assert_allclose(function(true, guess), wanted, rtol=1e-4)

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
legacy = tf.keras.optimizers.legacy
opts = [legacy.SGD(0.1, momentum=0.9, nesterov=True), legacy.Nadam(0.01), legacy.Adamax(0.01)]
assert all(isinstance(each, legacy.Optimizer) for each in opts)
model(x)
hvd.broadcast_variables(model.variables, root_rank=0)
seen = {each.ref(): each.read_value() for each in model.trainable_variables}
names = {variable.ref(): variable.name for variable in model.variables}
assert len(seen) == 2 and sorted(names.values()) == ["bias", "kernel"]
for opt in opts:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.mean_squared_error(x[:, :1] * 3, model(x)))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    reduced = [hvd.allreduce(each) for each in gradients]
    opt.apply_gradients(
        zip(reduced, model.trainable_variables),
        name="update",
        experimental_aggregate_gradients=False,
    )
    for variable in model.trainable_variables:
        assert not np.array_equal(variable.numpy(), seen[variable.ref()].numpy())
weights = model.get_weights()
