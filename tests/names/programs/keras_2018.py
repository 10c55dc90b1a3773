"""In the style of 2018: the package keras, a session for the GPU, generators."""

import numpy as np
from keras.layers.core import Dense, Flatten
from keras.models import Sequential
from keras.preprocessing.image import ImageDataGenerator
from keras.utils import np_utils

import horovod.keras as hvd
import keras
import tensorflow as tf
from keras import backend as K

hvd.init()
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))
tf.set_random_seed(hvd.rank())

x = np.random.RandomState(hvd.rank()).rand(24, 8, 8, 1).astype("float32")
y = np_utils.to_categorical(np.arange(24) % 3, 3)
model = Sequential()
model.add(Flatten(input_shape=(8, 8, 1)))
model.add(Dense(3, activation="softmax"))
opt = keras.optimizers.Adadelta(lr=1.0 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
model.compile(loss=keras.losses.categorical_crossentropy, optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2, verbose=0),
    keras.callbacks.ReduceLROnPlateau(patience=10),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5", period=2))
images = ImageDataGenerator(horizontal_flip=True)
flow = images.flow(x, y, batch_size=8)
model.fit_generator(
    flow,
    steps_per_epoch=6 // hvd.size(),
    epochs=2,
    callbacks=callbacks,
    verbose=0,
    workers=1,
    validation_data=ImageDataGenerator().flow(x, y, batch_size=8),
    validation_steps=9 // hvd.size(),
)
score = model.evaluate_generator(flow, steps=3)
predicted = model.predict_generator(flow, steps=3)
assert predicted.shape == (24, 3) and len(score) == 2
hvd.allreduce(score[0], name="score")
assert K.get_value(model.optimizer.lr) > 0
if hvd.rank() == 0:
    again = hvd.load_model("./checkpoint-2.h5")
    np.testing.assert_allclose(again.get_weights()[0], model.get_weights()[0])
weights = model.get_weights()
