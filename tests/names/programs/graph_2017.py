"""In the style of 2017: a graph, layers, hooks, a monitored session."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

layers = tf.layers
tf.logging.set_verbosity(tf.logging.ERROR)
hvd.init()
image = tf.placeholder(tf.float32, [None, 16], name="image")
label = tf.placeholder(tf.int32, [None], name="label")
mode = tf.estimator.ModeKeys.TRAIN
with tf.variable_scope("conv_layer1"):
    hidden = tf.reshape(image, [-1, 4, 4, 1])
    hidden = layers.conv2d(hidden, 2, kernel_size=[3, 3], activation=tf.nn.relu, padding="SAME")
    hidden = tf.nn.max_pool(hidden, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
hidden = layers.dropout(tf.layers.flatten(hidden), rate=0.5, training=mode == "train")
logits = layers.dense(hidden, 3, activation=None)
loss = tf.losses.softmax_cross_entropy(tf.one_hot(label, 3), logits)
opt = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.001 * hvd.size()))
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)
hooks = [
    hvd.BroadcastGlobalVariablesHook(0),
    tf.train.StopAtStepHook(last_step=8 // hvd.size()),
    tf.train.LoggingTensorHook(tensors={"step": global_step}, every_n_iter=2),
]
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
x = np.random.RandomState(hvd.rank()).rand(8, 16)
folder = "./checkpoints" if hvd.rank() == 0 else None
session = tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, config=config)
with session as mon_sess:
    while not mon_sess.should_stop():
        weights, step = mon_sess.run(
            [tf.trainable_variables(), train_op], feed_dict={image: x, label: np.arange(8) % 3}
        )
