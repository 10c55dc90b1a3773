"""In the style of 2021: a tape and a scaled loss, old names tried first, optimizers that are told."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
x = tf.constant(np.random.RandomState(hvd.rank()).rand(16, 4).astype("float32"))
y = tf.reduce_sum(x, axis=1, keepdims=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, batch_input_shape=(None, 4))])
opt = tf.keras.optimizers.legacy.SGD(lr=0.1, decay=0.1)
opt = tf.keras.mixed_precision.LossScaleOptimizer(opt, dynamic=False, initial_scale=8.0)
try:
    init = tf.global_variables_initializer()
except AttributeError:
    init = tf.compat.v1.global_variables_initializer()
losses = [tf.keras.metrics.Mean(), tf.keras.metrics.MeanAbsoluteError()]


@tf.function
def step():
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        guess = model(x, training=True)
        loss = tf.reduce_mean(tf.keras.losses.mean_absolute_error(y, guess))
        scaled = opt.get_scaled_loss(loss)
    gradients = opt.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
    pairs = zip(gradients, model.trainable_variables)
    opt.apply_gradients(pairs, experimental_aggregate_gradients=False)
    losses[0].update_state(loss)
    losses[1].update_state(y, guess)


by_ref = {each.ref(): each for each in model.trainable_variables}
assert [by_ref[each.ref()] is each for each in model.trainable_variables] == [True, True]
for epoch in range(2):
    for metric in losses:
        metric.reset_states()
    step()
    if epoch == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
assert tf.executing_eagerly() and losses[0].count.numpy() == 1
opt.inner_optimizer.lr = 0.01
assert len(opt.get_weights()) == len(opt.weights)
weights = model.get_weights()
