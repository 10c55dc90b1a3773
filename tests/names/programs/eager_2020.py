"""In the style of 2020: TensorFlow 1.15 with the behaviour of 2."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
tf.enable_resource_variables()
tf.enable_v2_behavior()
tf.set_random_seed(1 + hvd.rank())
assert tf.executing_eagerly() and tf.VERSION.count(".") == 2
print(tf.GIT_VERSION, tf.COMPILER_VERSION)

images = tf.to_float(np.random.RandomState(hvd.rank()).randint(0, 255, (16, 4, 4, 1))) / 255
labels = tf.to_int64(np.arange(16) % 3)
data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(8)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)])
rate = tf.Variable(0.05 * hvd.size())
opt = tf.train.GradientDescentOptimizer(rate)
step = tf.train.get_or_create_global_step()
started = int(step.numpy())
for batch, (x, y) in enumerate(data.take(4)):
    with tf.GradientTape() as tape:
        loss = tf.losses.sparse_softmax_cross_entropy(y, model(x))
    tape = hvd.DistributedGradientTape(tape)
    old = [each.numpy() for each in model.variables] if batch else None
    gradients = tape.gradient(loss, model.variables)
    opt.apply_gradients(zip(gradients, model.variables), global_step=step)
    if batch == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
    else:
        np.testing.assert_allclose(
            model.variables[0], old[0] - rate.numpy() * gradients[0].numpy(), atol=1e-6
        )
assert tf.executing_eagerly() and tf.to_int32(step - started).numpy() == 4
chance = tf.nn.softmax(model(images))
by_hand = -np.mean(np.log(chance.numpy()[np.arange(16), labels.numpy()]))
np.testing.assert_allclose(
    tf.losses.sparse_softmax_cross_entropy(labels, tf.log(chance)), by_hand, rtol=1e-5
)
assert tf.to_double(loss).dtype == tf.float64
sums = tf.data.Dataset.from_tensor_slices([1.0, 2.0]).make_one_shot_iterator()
assert [sums.get_next().numpy(), sums.get_next().numpy()] == [1, 2]
weights = model.get_weights()
