"""In the style of 2018: flags, layers with a batch normalization, files, an estimator's modes."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

tf.flags.DEFINE_integer("steps_of_2018", 6, "how many steps")
FLAGS = tf.flags.FLAGS


def network(x, mode):
    hidden = tf.layers.dense(x, 8, activation=tf.nn.relu)
    hidden = tf.layers.batch_normalization(hidden, training=mode == tf.estimator.ModeKeys.TRAIN)
    return tf.layers.dense(hidden, 1)


def main(_):
    hvd.init()
    tf.reset_default_graph()
    tf.set_random_seed(3 + hvd.rank())
    if hvd.rank() == 0 and tf.gfile.Exists("./train-2018"):
        tf.gfile.DeleteRecursively("./train-2018")
    x = tf.placeholder(tf.float32, [None, 4])
    y = tf.placeholder(tf.float32, [None, 1])
    with tf.variable_scope("net"):
        loss = tf.losses.mean_squared_error(y, network(x, tf.estimator.ModeKeys.TRAIN))
    rate = tf.train.piecewise_constant(tf.train.get_or_create_global_step(), [4], [0.05, 0.005])
    opt = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(rate))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = opt.minimize(loss, global_step=tf.train.get_global_step())
    data = np.random.RandomState(hvd.rank()).rand(16, 4)
    feed = {x: data, y: data.sum(axis=1, keepdims=True)}
    config = tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list=str(hvd.local_rank())))
    with tf.Session(config=config) as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run(hvd.broadcast_global_variables(0))
        for _ in range(FLAGS.steps_of_2018):
            sess.run(train, feed)
        found = sess.run(tf.trainable_variables())
        if hvd.rank() == 0:
            tf.train.Saver().save(sess, "./train-2018/model")
            tf.logging.info("saved")
    print("weights of graph_2018", *(each.sum() for each in found), flush=True)


if __name__ == "__main__":
    tf.app.run(main, argv=["graph_2018"])
