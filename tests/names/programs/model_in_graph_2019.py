"""In the style of 2019: a model of tf.keras, hooks, and a monitored session."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
x = np.random.RandomState(hvd.rank()).rand(8, 4).astype("float32")
variable = tf.Variable(0.5, name="offset")
features = tf.placeholder(tf.float32, [None, 4])
hidden = tf.keras.layers.Dropout(0.5)(tf.keras.layers.Dense(8, "relu")(features), training=True)
loss = tf.reduce_mean((tf.keras.layers.Dense(1)(hidden) + variable - 2.0) ** 2)
step = tf.train.get_or_create_global_step()
train = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.01)).minimize(loss, global_step=step)
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=4)]
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    while not session.should_stop():
        weights, _ = session.run([tf.trainable_variables(), train], {features: x})
print("weights", *(repr(float(each.sum())) for each in weights), flush=True)
