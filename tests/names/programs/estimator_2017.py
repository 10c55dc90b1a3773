"""In the style of 2017: the estimator for MNIST, as Horovod's example had it, with few pictures."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.ERROR)


def cnn_model_fn(features, labels, mode):
    """Model function for CNN."""
    x = tf.reshape(features["x"], [-1, 8, 8, 1])
    conv = tf.layers.conv2d(
        inputs=x, filters=4, kernel_size=[5, 5], padding="same", activation=tf.nn.relu
    )
    pool = tf.layers.max_pooling2d(inputs=conv, pool_size=[2, 2], strides=2)
    dense = tf.layers.dense(inputs=tf.layers.flatten(pool), units=8, activation=tf.nn.relu)
    dropout = tf.layers.dropout(
        inputs=dense, rate=0.4, training=mode == tf.estimator.ModeKeys.TRAIN
    )
    logits = tf.layers.dense(inputs=dropout, units=3)
    predictions = {
        "classes": tf.argmax(input=logits, axis=1),
        "probabilities": tf.nn.softmax(logits, name="softmax_tensor"),
    }
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions)
    onehot_labels = tf.one_hot(indices=tf.cast(labels, tf.int32), depth=3)
    loss = tf.losses.softmax_cross_entropy(onehot_labels=onehot_labels, logits=logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.MomentumOptimizer(learning_rate=0.001 * hvd.size(), momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer)
        train_op = optimizer.minimize(loss=loss, global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    eval_metric_ops = {"accuracy": tf.metrics.accuracy(labels, predictions["classes"])}
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=eval_metric_ops)


seen = []


class Remember(tf.train.LoggingTensorHook):
    def _log_tensors(self, tensor_values):
        seen.append(tensor_values["probabilities"])
        super()._log_tensors(tensor_values)


hvd.init()
data = np.random.RandomState(hvd.rank()).rand(24, 64).astype("float32")
labels = np.arange(24) % 3
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())
model_dir = "./mnist_convnet_model-%d" % hvd.rank()
classifier = tf.estimator.Estimator(
    model_fn=cnn_model_fn, model_dir=model_dir,
    config=tf.estimator.RunConfig(session_config=config),
)  # fmt: skip
inputs = tf.estimator.inputs.numpy_input_fn
train_input_fn = inputs(x={"x": data}, y=labels, batch_size=8, num_epochs=None, shuffle=True)
eval_input_fn = inputs(x={"x": data}, y=labels, num_epochs=1, shuffle=False)
logging_hook = Remember(tensors={"probabilities": "softmax_tensor"}, every_n_iter=2)
hooks = [logging_hook, hvd.BroadcastGlobalVariablesHook(0)]
tf.estimator.train_and_evaluate(
    classifier,
    tf.estimator.TrainSpec(input_fn=train_input_fn, max_steps=4, hooks=hooks),
    tf.estimator.EvalSpec(input_fn=eval_input_fn, steps=None),
)
assert classifier.get_variable_value("global_step") == 4 and len(seen) == 2
np.testing.assert_allclose(seen[0].sum(axis=1), np.ones(8), rtol=1e-5)
results = classifier.evaluate(input_fn=eval_input_fn)
predict_fn = inputs(x={"x": data}, num_epochs=1, shuffle=False)
guesses = [each["classes"] for each in classifier.predict(predict_fn)]
np.testing.assert_allclose(results["accuracy"], np.mean(guesses == labels), rtol=1e-5)
names = ("conv2d/kernel", "dense/kernel", "dense_1/bias")
weights = [classifier.get_variable_value(each) for each in names]
