"""In the style of 2020: TensorFlow 2, a tape, and a scaled loss."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
tf.random.set_seed(hvd.rank())
x = tf.constant(np.random.RandomState(hvd.rank()).rand(16, 4).astype("float32"))
y = tf.reduce_sum(x, axis=1, keepdims=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
scaled = tf.keras.mixed_precision.LossScaleOptimizer
opts = [
    tf.optimizers.Adam(0.01 * hvd.size()),
    scaled(tf.keras.optimizers.SGD(0.1), dynamic=False, initial_scale=64.0),
    scaled(tf.keras.optimizers.SGD(0.1)),
]
mean = tf.keras.metrics.Mean()


def make(opt):
    @tf.function
    def step(first_batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            total = opt.get_scaled_loss(loss) if isinstance(opt, scaled) else loss
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(total, model.trainable_variables)
        if isinstance(opt, scaled):
            gradients = opt.get_unscaled_gradients(gradients)
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        opt.apply_gradients(zip(gradients, model.trainable_variables))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables(), root_rank=0)
        return loss, gradients

    return step


for opt in opts:
    step = make(opt)
    step(True)
    mean.reset_states()
    before = [each.numpy() for each in model.trainable_variables]
    loss, gradients = step(False)
    mean.update_state(loss)
    if isinstance(opt, scaled):  # the step is as long as the clipped gradients say
        for old, new, gradient in zip(before, model.trainable_variables, gradients):
            np.testing.assert_allclose(new.numpy(), old - 0.1 * gradient.numpy(), atol=1e-6)
weights = model.get_weights()
