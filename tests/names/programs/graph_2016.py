"""In the style of 2016: variables by hand, a session, all that TensorFlow has renamed since."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
tf.reset_default_graph()
tf.set_random_seed(hvd.rank())
x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.float32, [None, 1])
with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
    w = tf.get_variable("w", [4, 1], initializer=tf.random_normal_initializer(stddev=0.1))
    b = tf.Variable(tf.zeros([1]), name="b")
error = tf.squared_difference(tf.matmul(x, w) + b, y)
loss = tf.reduce_mean(tf.to_float(error), reduction_indices=[0, 1])
rate = tf.train.exponential_decay(0.1 * hvd.size(), 0, 10, 0.9)
opt = hvd.DistributedOptimizer(tf.train.MomentumOptimizer(rate, momentum=0.9))
train = opt.apply_gradients(opt.compute_gradients(loss))
init = tf.global_variables_initializer()
bcast = hvd.broadcast_global_variables(0)
saver = tf.train.Saver()
data = np.random.RandomState(hvd.rank()).rand(16, 4)
with tf.Session(config=tf.ConfigProto(log_device_placement=False)) as sess:
    sess.run(init)
    bcast.run()
    first = sess.run(loss, {x: data, y: data.sum(axis=1, keepdims=True)})
    for _ in range(10):
        _, last = sess.run([train, loss], {x: data, y: data.sum(axis=1, keepdims=True)})
    if hvd.rank() == 0:
        saver.save(sess, "./model.ckpt")
    weights = sess.run([w, b])
assert last < first
