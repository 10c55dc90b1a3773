"""In the style of 2019: train_and_evaluate, data sets, and parameters of the model."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf


def model_fn(features, labels, mode, params):
    guess = tf.layers.dense(features, params["units"])
    loss = tf.losses.mean_squared_error(labels, guess)
    opt = tf.train.AdamOptimizer(params["rate"] * hvd.size())
    train_op = hvd.DistributedOptimizer(opt).minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    x = np.random.RandomState(hvd.rank()).rand(32, 4).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
    return data.repeat().batch(8).make_one_shot_iterator().get_next()


hvd.init()
estimator = tf.estimator.Estimator(
    model_fn, model_dir="./estimator-2019-%d" % hvd.rank(), params={"units": 1, "rate": 0.01},
    config=tf.estimator.RunConfig(save_checkpoints_steps=4, keep_checkpoint_max=1),
)
train = tf.estimator.TrainSpec(input_fn, 8, hooks=[hvd.BroadcastGlobalVariablesHook(0)])
tf.estimator.train_and_evaluate(estimator, train, tf.estimator.EvalSpec(input_fn, steps=2))
assert estimator.get_variable_value("global_step") == 8
weights = [estimator.get_variable_value("dense/" + name) for name in ("kernel", "bias")]
