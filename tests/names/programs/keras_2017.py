"""In the style of 2017: modules of layers, generators of one's own, a model that trains on."""

import numpy as np
from keras.layers import ThresholdedReLU
from keras.layers.convolutional import Conv2D
from keras.layers.core import Activation, Dense, Flatten
from keras.layers.normalization import BatchNormalization
from keras.layers.pooling import MaxPooling2D
from keras.layers.recurrent import LSTM
from keras.models import Sequential, load_model
from keras.preprocessing.text import Tokenizer
from keras.utils.np_utils import to_categorical

import horovod.keras as hvd
import keras
import tensorflow as tf
from keras import backend as K

hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))

x = np.random.RandomState(hvd.rank()).rand(24, 8, 8, 1).astype("float32")
y = to_categorical(np.arange(24) % 3, 3)
model = Sequential()
model.add(Conv2D(2, (3, 3), padding="same", batch_input_shape=(None, 8, 8, 1)))
model.add(BatchNormalization(fused=True))
model.add(Activation("relu"))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Flatten())
model.add(Dense(3, activation="softmax"))
opt = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.1 * hvd.size(), decay=0.5, momentum=0.9))
model.compile(loss="categorical_crossentropy", optimizer=opt, metrics=["accuracy"])


def batches(size=8):
    while True:
        for start in range(0, len(x), size):
            yield x[start : start + size], y[start : start + size]


class Slower(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        K.set_value(self.model.optimizer.lr, 0.5 * K.get_value(self.model.optimizer.lr))


callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Slower()]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.TensorBoard("./logs-2017", write_grads=False, batch_size=8))
    callbacks.append(keras.callbacks.ModelCheckpoint("./best-{epoch}.hdf5", period=1))
model.fit_generator(batches(), steps_per_epoch=3, epochs=2, verbose=0, callbacks=callbacks)
loss, accuracy = model.evaluate_generator(batches(), steps=3)
assert model.predict_generator(batches(), steps=3).shape == (24, 3)
classes = model.predict_classes(x, verbose=0)
np.testing.assert_array_equal(classes, model.predict_proba(x, verbose=0).argmax(axis=1))
assert np.isclose(K.get_value(model.optimizer.lr), 0.1 * hvd.size() / 4)
if hvd.rank() == 0:
    model.save_weights("./weights.h5")
    model.load_weights("./weights.h5")
    further = load_model("./best-2.hdf5")
    further.fit(x, y, batch_size=8, verbose=0)

words = Tokenizer(num_words=10)
words.fit_on_texts(["one two", "two three"])
assert words.word_index["two"] == 1
layers = [LSTM(2, batch_input_shape=(4, 3, 1)), ThresholdedReLU(theta=0.01), Dense(1)]
recurrent = Sequential(layers)
recurrent.compile("sgd", "mse")
recurrent.fit(x[:, :3, 0], x[:, 0, 0], batch_size=4, verbose=0, workers=1)
weights = [each.numpy() for each in model.trainable_weights]
