"""In the style of 2019: a graph kept on TensorFlow 2, traced and frozen."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

from_arrays = tf.data.Dataset.from_tensor_slices
tf.disable_v2_behavior()
tf.disable_eager_execution()


def network(x, labels, training):
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        hidden = tf.layers.conv2d(x, 4, [3, 3], padding="same", activation=tf.nn.relu)
        hidden = tf.layers.batch_normalization(hidden, training=training)
        hidden = tf.layers.max_pooling2d(hidden, [2, 2], strides=2)
        hidden = tf.layers.dropout(tf.layers.flatten(hidden), 0.25, training=training)
        w = tf.get_variable("w", [16, 3], initializer=tf.truncated_normal_initializer(stddev=0.1))
        logits = tf.matmul(hidden, w, name="logits")
    tf.add_to_collection("logits", logits)
    return logits, tf.losses.sparse_softmax_cross_entropy(tf.to_int32(labels), logits)


hvd.init()
tf.reset_default_graph()
print("TensorFlow", tf.VERSION, tf.GIT_VERSION, tf.COMPILER_VERSION)
tf.set_random_seed(hvd.rank())
random = np.random.RandomState(hvd.rank())
images, labels = random.rand(12, 4, 4, 1).astype("float32"), np.arange(12) % 3
iterator = from_arrays((images, labels)).repeat().batch(6).make_initializable_iterator()
once = from_arrays((images, labels)).batch(12).make_one_shot_iterator().get_next()
x, y = iterator.get_next()
logits, loss = network(x, y, training=True)
tested, _ = network(*once, training=False)
step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.01, step, decay_steps=2, decay_rate=0.5, staircase=True)
opt = hvd.DistributedOptimizer(tf.train.RMSPropOptimizer(rate * hvd.size()))
updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
assert len(updates) == 2 and tf.get_collection("logits") == [logits, tested]
with tf.control_dependencies(updates):
    train = opt.minimize(loss, global_step=step)
right, counted = tf.metrics.accuracy(once[1], tf.argmax(tested, 1))
uniform = tf.random_uniform([100], 2.0, 3.0)
config = tf.ConfigProto(
    graph_options=tf.GraphOptions(
        optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)
    )
)
config.gpu_options.visible_device_list = str(hvd.local_rank())
with tf.Session(config=config) as sess:
    sess.run(tf.variables_initializer(tf.global_variables()))
    sess.run([iterator.initializer, tf.local_variables_initializer()])
    sess.run(hvd.broadcast_global_variables(0))
    rates = [sess.run([train, rate])[1]]
    options, traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    sess.run(train, options=options, run_metadata=traced)
    assert any(
        "conv2d" in node.node_name for dev in traced.step_stats.dev_stats for node in dev.node_stats
    )
    found = sess.run(counted)
    assert sess.run(right) == found and 0 <= found <= 1
    rates.append(sess.run(rate))
    np.testing.assert_allclose(rates, [0.01, 0.005])
    numbers = sess.run(uniform)
    assert 2 <= numbers.min() and numbers.max() <= 3 and numbers.std() > 0.1
    weights = sess.run(tf.trainable_variables())
    frozen = tf.graph_util.convert_variables_to_constants(
        sess, sess.graph.as_graph_def(), [tested.op.name]
    )
again = tf.GraphDef()
again.ParseFromString(frozen.SerializeToString())
with tf.Graph().as_default():
    (logits,) = tf.import_graph_def(again, return_elements=[tested.name])
    assert not tf.global_variables()
    with tf.train.SingularMonitoredSession() as sess:
        assert sess.run(logits).shape == (12, 3)
