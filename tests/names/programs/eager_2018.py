"""In the style of 2018: TensorFlow 1 in eager mode, and its optimizer on a model of Keras."""

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf


def main(_):
    hvd.init()
    config = tf.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    tf.enable_eager_execution(config=config)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    opt = tf.train.RMSPropOptimizer(0.001 * hvd.size())
    x = np.random.RandomState(hvd.rank()).rand(40, 4).astype("float32")
    labels = np.arange(40) % 2
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).repeat().batch(8)
    for batch, (images, wanted) in enumerate(dataset.take(4 // hvd.size())):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.losses.sparse_softmax_cross_entropy(wanted, logits)
        tape = hvd.DistributedGradientTape(tape)
        opt.apply_gradients(
            zip(tape.gradient(loss, model.variables), model.variables),
            global_step=tf.train.get_or_create_global_step(),
        )
        if batch == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables(), root_rank=0)
    assert tf.executing_eagerly()
    print("weights of eager_2018", *(each.sum() for each in model.get_weights()), flush=True)


if __name__ == "__main__":
    tf.app.run(main, argv=["eager_2018"])
