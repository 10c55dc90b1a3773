"""In the style of 2020: TensorFlow 2 switched off, monitored sessions."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

slices = tf.data.Dataset.from_tensor_slices
tf.disable_eager_execution()
tf.disable_v2_behavior()
flags = tf.app.flags
flags.DEFINE_string("optimizer_of_2020", "adagrad", "adagrad, adadelta or rmsprop")
OPTIMIZERS = {
    "adagrad": tf.train.AdagradOptimizer,
    "adadelta": tf.train.AdadeltaOptimizer,
    "rmsprop": tf.train.RMSPropOptimizer,
}


def conv_model(features, target, mode):
    with tf.variable_scope("conv", reuse=tf.AUTO_REUSE):
        scale = tf.get_variable("scale", initializer=tf.truncated_normal([], 1.0, 0.01))
        h = tf.layers.conv2d(scale * features, 2, kernel_size=[3, 3], activation=tf.nn.relu)
        h = tf.layers.max_pooling2d(h, pool_size=2, strides=2, padding="same")
    h = tf.layers.dropout(tf.layers.flatten(h), rate=0.5, training=mode == "train")
    logits = tf.layers.dense(tf.layers.batch_normalization(h), 2)
    with tf.control_dependencies([tf.assert_rank(logits, 2)]):
        loss = tf.losses.sparse_softmax_cross_entropy(target, logits)
    return tf.argmax(logits, 1), loss


def train():
    x = np.random.RandomState(hvd.rank()).rand(8, 6, 6, 1).astype("float32")
    data = slices((x, np.arange(8) % 2)).repeat().batch(4)
    iterator = data.make_initializable_iterator()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    predict, loss = conv_model(*iterator.get_next(), "train")
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.01 * hvd.size(), step, 1, 0.5)
    opt = hvd.DistributedOptimizer(OPTIMIZERS[flags.FLAGS.optimizer_of_2020](rate))
    train_op = opt.minimize(loss, global_step=step)
    assert tf.get_collection(tf.GraphKeys.LOSSES) == [loss]
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=3),
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10),
    ]
    config = tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True))
    rates = []
    with tf.train.SingularMonitoredSession(hooks=hooks, config=config) as session:
        while not session.should_stop():
            _, now = session.run([train_op, rate])
            rates.append(float(now))
            weights = session.raw_session().run(tf.trainable_variables())
    assert len(rates) == 3 and rates[2] < rates[0]
    return weights


def again(values):
    """The same weights in a graph of their own, from initializers and by a monitored session."""
    with tf.Graph().as_default():
        variables = [tf.Variable(tf.zeros_like(each)) for each in values]
        copies = [tf.assign(each, value) for each, value in zip(variables, values)]
        noise = tf.random_uniform([3], seed=1)
        step = tf.train.get_or_create_global_step()
        options = tf.train.Scaffold(init_op=tf.initialize_all_variables())
        with tf.train.MonitoredTrainingSession(scaffold=options) as session:
            assert session.run(step) == 0 and 0 <= session.run(noise).min()
            return session.run(copies)


hvd.init()
tf.reset_default_graph()
tf.logging.set_verbosity(tf.logging.WARN)
assert not tf.executing_eagerly()
weights = train()
for one, other in zip(again(weights), weights):
    np.testing.assert_array_equal(one, other)
