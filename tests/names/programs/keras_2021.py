"""In the style of 2020 and 2021: what compile, fit and checkpoints took, an optimizer's weights."""

import numpy as np

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow.keras.layers import BatchNormalization, CuDNNLSTM, Dense, ThresholdedReLU
from tensorflow.keras.preprocessing.image import ImageDataGenerator
from tensorflow.keras.preprocessing.text import Tokenizer

hvd.init()
tf.keras.backend.clear_session()
x = np.random.RandomState(hvd.rank()).rand(16, 3, 1).astype("float32")
y = (x.sum(axis=(1, 2)) > 1.5).astype("float32")
layers = [CuDNNLSTM(4), BatchNormalization(fused=False), ThresholdedReLU(0.5), Dense(1, "sigmoid")]
model = tf.keras.Sequential(layers)
opt = hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.1 * hvd.size(), momentum=0.9))
model.compile(
    optimizer=opt,
    loss=tf.keras.losses.binary_crossentropy,
    metrics=[tf.keras.metrics.binary_accuracy],
    sample_weight_mode=None,
    experimental_steps_per_execution=2,
    experimental_run_tf_function=False,
)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    board = tf.keras.callbacks.TensorBoard("./logs-2021", write_grads=True, histogram_freq=0)
    path = "./cp/at-{epoch}"
    saved = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq="epoch")
    callbacks += [board, saved, tf.keras.callbacks.ModelCheckpoint("./whole-{epoch}")]
model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks, workers=2,
          max_queue_size=10)
model.optimizer.lr = 0.5 * float(model.optimizer.lr)
assert len(model.optimizer.weights) == len(model.optimizer.get_weights())
model.optimizer.set_weights([0 * each for each in model.optimizer.get_weights()])
assert model.optimizer.iterations.numpy() == 0
np.testing.assert_array_equal(model.predict_classes(x, verbose=0), model.predict_proba(x) > 0.5)
if hvd.rank() == 0:
    model.save("./model-2021", save_format="tf")
    for again in (tf.keras.models.load_model("./model-2021"), hvd.load_model("./whole-2")):
        again.load_weights(tf.train.latest_checkpoint("./cp"))
        np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    model.save_weights("./cp/by-hand", save_format="tf")
    model.load_weights("./cp/by-hand")
flow = ImageDataGenerator(rescale=2.0).flow(x[..., None], y, batch_size=16, shuffle=False)
np.testing.assert_allclose(flow[0][0][..., 0], 2 * x, rtol=1e-6)
words = Tokenizer()
words.fit_on_texts(["a b b"])
assert words.texts_to_sequences(["b a"]) == [[1, 2]]
weights = [each.numpy() for each in model.trainable_weights]
