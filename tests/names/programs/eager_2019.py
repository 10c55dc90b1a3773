"""In the style of 2019: eager execution of TensorFlow 1, flags, files and logs."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

tf.app.flags.DEFINE_float("rate_of_2019", 0.1, "the learning rate")
FLAGS = tf.app.flags.FLAGS


def main(_):
    tf.logging.set_verbosity(tf.logging.ERROR)
    hvd.init()
    folder = "./of-rank-%d" % hvd.rank()
    tf.gfile.MakeDirs(folder)
    tf.enable_eager_execution(tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True)))
    tf.set_random_seed(7)
    with tf.gfile.GFile(folder + "/note", "w") as note:
        note.write("rate %g" % FLAGS.rate_of_2019)
    assert tf.gfile.Exists(folder + "/note")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    x = np.random.RandomState(hvd.rank()).rand(8, 4).astype("float32")
    x = tf.data.Dataset.from_tensor_slices(x).batch(8).make_one_shot_iterator().get_next().numpy()
    opt = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(FLAGS.rate_of_2019))

    def loss():
        return tf.reduce_mean(tf.squared_difference(model(x), x.sum(axis=1, keepdims=True)))

    first = loss()
    hvd.broadcast_variables(model.variables, root_rank=0)
    for _ in range(3):
        opt.minimize(loss, var_list=model.trainable_variables)
    assert loss() < first
    print("weights of eager_2019", *(each.sum() for each in model.get_weights()), flush=True)


if __name__ == "__main__":
    tf.app.run(main, argv=["eager_2019"])
