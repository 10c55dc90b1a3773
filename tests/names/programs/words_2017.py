"""In the style of 2017: sentences, recurrent networks on the GPU, a Sequence of one's own."""

import keras
import numpy as np
from keras.backend.tensorflow_backend import set_session
from keras.engine import Input, Model
from keras.engine.topology import Layer
from keras.engine.training import Model as TrainedModel
from keras.layers import CuDNNGRU, CuDNNLSTM
from keras.layers.advanced_activations import ELU, ThresholdedReLU
from keras.layers.convolutional import Conv1D
from keras.layers.core import Dense, Dropout, SpatialDropout1D
from keras.layers.embeddings import Embedding
from keras.layers.merge import Concatenate
from keras.layers.noise import GaussianDropout
from keras.layers.normalization import BatchNormalization
from keras.layers.pooling import GlobalMaxPooling1D
from keras.layers.recurrent import LSTM
from keras.layers.wrappers import TimeDistributed
from keras.models import Sequential
from keras.objectives import binary_crossentropy
from keras.preprocessing.sequence import pad_sequences
from keras.preprocessing.text import Tokenizer, one_hot, text_to_word_sequence
from keras.utils import vis_utils
from keras.utils.data_utils import Sequence
from keras.utils.generic_utils import get_custom_objects
from keras.utils.np_utils import to_categorical

import horovod.keras as hvd
import tensorflow as tf
from keras import backend as K

hvd.init()
set_session(tf.Session(config=tf.ConfigProto(device_count={"GPU": 1})))
assert Model is TrainedModel is keras.models.Model and K.backend() == "tensorflow"
texts = ["the cat sat on the mat", "The dog, it barked!", "a cat and a dog", "nothing at all"] * 4
tokens = Tokenizer(num_words=12)
tokens.fit_on_texts(texts)
x = pad_sequences(tokens.texts_to_sequences(texts), maxlen=3)
assert x.shape == (16, 3) and x.max() < 12 and tokens.word_index["the"] == 1
assert text_to_word_sequence("The dog, it barked!") == ["the", "dog", "it", "barked"]
assert one_hot("dog cat dog", 50)[0] == one_hot("dog", 50)[0]
y = to_categorical(np.arange(16) % 2)[:, 1]


class First(Layer):
    """The first step only."""

    def call(self, inputs):
        return inputs[:, 0]


get_custom_objects().update({"First": First})
words = Input(shape=(3,), dtype="int32")
known = SpatialDropout1D(0.1)(Embedding(12, 4, input_length=3)(words))
left = GlobalMaxPooling1D()(TimeDistributed(Dense(4))(CuDNNLSTM(3, return_sequences=True)(known)))
right = First()(CuDNNGRU(3, return_sequences=True)(known))
third = BatchNormalization(fused=True)(Conv1D(2, 3, padding="same", activation="relu")(known))
third = ThresholdedReLU(theta=0.0)(ELU()(LSTM(2)(third)))
merged = Dropout(0.1)(GaussianDropout(0.1)(Concatenate()([left, right, third])))
model = Model(words, Dense(1, activation="sigmoid")(merged))
opt = hvd.DistributedOptimizer(keras.optimizers.RMSprop(lr=0.001 * hvd.size()))
model.compile(loss=binary_crossentropy, optimizer=opt, metrics=["accuracy"])


class Batches(Sequence):
    def __init__(self):
        super().__init__()
        self.ends = 0

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]

    def on_epoch_end(self):
        self.ends += 1


callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.TensorBoard("./logs-words", batch_size=8))
    path = "./words-{epoch}.hdf5"
    whole = keras.callbacks.ModelCheckpoint(
        path, save_weights_only=True, load_weights_on_restart=True
    )
    callbacks.append(whole)
batches = Batches()
model.fit(
    batches, epochs=1, verbose=0, callbacks=callbacks, max_queue_size=2, workers=1,
    use_multiprocessing=False,
)  # fmt: skip
assert batches.ends
loss, _ = model.evaluate(batches, verbose=0, workers=1, max_queue_size=2, use_multiprocessing=False)
given = model.predict(batches, verbose=0, workers=1, max_queue_size=2, use_multiprocessing=False)
right = np.where(y == 1, given[:, 0], 1 - given[:, 0])
np.testing.assert_allclose(loss, -np.log(right).mean(), rtol=1e-4)
assert (
    Sequential([ThresholdedReLU(theta=0.5)]).predict_classes(given).tolist()
    == (given > 0.5).tolist()
)
if hvd.rank() == 0:
    kept = model.get_weights()
    model.set_weights([0 * each for each in kept])
    model.load_weights("./words-1.hdf5")
    for one, other in zip(model.get_weights(), kept):
        np.testing.assert_array_equal(one, other)
try:
    assert vis_utils.model_to_dot(model) is not None
except ImportError:  # pydot is not installed
    pass
get_custom_objects().pop("First")
weights = [each.numpy() for each in model.trainable_weights]
