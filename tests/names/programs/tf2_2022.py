"""In the style of 2022: fit, the older optimizers, TensorFlow's checkpoints."""

import os

import numpy as np

import horovod.tensorflow.keras as hvd
import tensorflow as tf

hvd.init()
x = np.random.RandomState(hvd.rank()).rand(16, 4).astype("float32")
y = x.sum(axis=1)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.legacy.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss="mse", optimizer=opt, experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.001 * hvd.size(), warmup_epochs=1),
]
if hvd.rank() == 0:
    folder = "./training"
    path = os.path.join(folder, "cp-{epoch:04d}.ckpt")
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./saved-{epoch}"))
model.fit(dataset, steps_per_epoch=4 // hvd.size(), epochs=2, callbacks=callbacks, verbose=0)
if hvd.rank() == 0:
    latest = tf.train.latest_checkpoint(folder)
    assert latest.endswith("cp-0002.ckpt")
    for again in (tf.keras.models.clone_model(model), tf.keras.models.load_model("./saved-2")):
        again.load_weights(latest)
        np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    model.save("./exported", save_format="tf")
    hvd.load_model("./exported")
assert isinstance(model.optimizer.variables, list)
weights = model.get_weights()
