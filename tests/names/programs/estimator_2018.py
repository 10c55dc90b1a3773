"""In the style of 2018: an estimator with a model_fn, hooks and input functions from arrays."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf


def model_fn(features, labels, mode):
    logits = tf.layers.dense(features["x"], 2)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions={"class": tf.argmax(logits, 1)})
    onehot = tf.one_hot(tf.cast(labels, tf.int32), depth=2)
    loss = tf.losses.softmax_cross_entropy(onehot_labels=onehot, logits=logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        opt = tf.train.MomentumOptimizer(learning_rate=0.05 * hvd.size(), momentum=0.9)
        train_op = hvd.DistributedOptimizer(opt).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    metrics = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)


hvd.init()
tf.logging.set_verbosity(tf.logging.ERROR)
x = np.random.RandomState(hvd.rank()).rand(64, 4).astype("float32")
y = (x.sum(axis=1) > 2).astype("int64")
inputs = tf.estimator.inputs.numpy_input_fn
folder = "./estimator-2018" if hvd.rank() == 0 else None
config = tf.estimator.RunConfig(session_config=tf.ConfigProto())
estimator = tf.estimator.Estimator(model_fn=model_fn, model_dir=folder, config=config)
estimator.train(
    input_fn=inputs({"x": x}, y, batch_size=16, num_epochs=None, shuffle=True),
    steps=20 // hvd.size(),
    hooks=[hvd.BroadcastGlobalVariablesHook(0)],
)
found = estimator.evaluate(input_fn=inputs({"x": x}, y, num_epochs=1, shuffle=False))
assert found["global_step"] == 20 // hvd.size() and 0 <= found["accuracy"] <= 1
assert len(list(estimator.predict(inputs({"x": x}, num_epochs=1, shuffle=False)))) == 64
weights = [estimator.get_variable_value("dense/" + name) for name in ("kernel", "bias")]
