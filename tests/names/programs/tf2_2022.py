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

# One step more by hand with each of the others, with gradients that are averaged already.
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((model(x)[:, 0] - y) ** 2)
gradients = [hvd.allreduce(each) for each in tape.gradient(loss, model.trainable_variables)]
legacy = tf.keras.optimizers.legacy
for kind in (legacy.SGD, legacy.Adagrad, legacy.Adadelta, legacy.Ftrl, legacy.RMSprop):
    before = model.get_weights()
    pairs = zip(gradients, model.trainable_variables)
    kind(0.1).apply_gradients(pairs, skip_gradients_aggregation=True)
    for old, new, gradient in zip(before, model.get_weights(), gradients):
        if kind is legacy.SGD:
            np.testing.assert_allclose(new, old - 0.1 * np.asarray(gradient), atol=1e-6)
        elif kind is not legacy.Ftrl:  # which may go past it, towards 0
            assert ((new < old) == (np.asarray(gradient) > 0)).all()
        assert not np.array_equal(new, old)
weights = model.get_weights()
