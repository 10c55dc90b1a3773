"""In the style of 2019: tf.keras, decay, weights in .h5 files, callbacks of one's own."""

import numpy as np

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.layers import Dense
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import SGD
from tensorflow.keras.preprocessing.image import ImageDataGenerator
from tensorflow.keras.utils import to_categorical

hvd.init()
config = tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True))
K.set_session(tf.Session(config=config))
tf.logging.set_verbosity(tf.logging.ERROR)


class Halve(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        K.set_value(self.model.optimizer.lr, K.get_value(self.model.optimizer.lr) / 2)


x = np.random.RandomState(hvd.rank()).rand(16, 4).astype("float32")
y = to_categorical(np.arange(16) % 2)
model = Sequential([Dense(2, activation="softmax", input_shape=(4,))])
opt = hvd.DistributedOptimizer(SGD(lr=0.4, decay=1.0, momentum=0.9))
model.compile("sgd", tf.keras.losses.mean_squared_error)
model.compile(opt, "categorical_crossentropy", metrics=["acc"], sample_weight_mode=None)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Halve()]
if hvd.rank() == 0:
    path = "./weights-{epoch}.h5"
    saved = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True, period=2)
    callbacks.append(saved)
model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks, use_multiprocessing=False)
assert float(K.get_value(model.optimizer.lr)) == np.float32(0.1)
assert model.optimizer.get_config()["decay"] == 1.0
if hvd.rank() == 0:
    before = model.get_weights()
    model.load_weights("./weights-2.h5")
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    model.save_weights("./all.h5")
    model.load_weights("./all.h5")
    model.save("./model.h5")
    further = tf.keras.models.load_model("./model.h5")
    further.fit(x, y, verbose=0)
assert len(list(ImageDataGenerator().flow(x.reshape(4, 4, 4, 1), batch_size=4)[0])) == 4
weights = model.get_weights()
