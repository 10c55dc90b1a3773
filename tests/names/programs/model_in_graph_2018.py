"""In the style of 2018: a model of tf.keras in a session of one's own, as benchmarks had it."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.keras import models

hvd.init()
config = tf.ConfigProto()
model = models.Sequential([tf.keras.layers.Dense(3, input_shape=(4,)), tf.keras.layers.Dense(1)])
opt = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.01 * hvd.size()))
init = tf.global_variables_initializer()
bcast_op = hvd.broadcast_global_variables(0)
x = tf.constant(np.random.RandomState(hvd.rank()).rand(8, 4).astype("float32"))
with tf.Session(config=config) as session:
    init.run()
    bcast_op.run()
    loss = tf.losses.mean_squared_error(tf.reduce_sum(x, 1, keepdims=True), model(x))
    train = opt.minimize(loss)
    for _ in range(3):
        session.run(train)
    weights = session.run(model.trainable_variables)
print("weights", *(repr(float(each.sum())) for each in weights), flush=True)
