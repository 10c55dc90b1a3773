"""In the style of 2017: layers, losses and metrics of one's own, made of keras.backend."""

import keras
import numpy as np
from keras import initializers
from keras.engine.topology import InputSpec, Layer
from keras.layers import CuDNNGRU, Input, Lambda
from keras.layers.core import Dense
from keras.layers.embeddings import Embedding
from keras.layers.merge import concatenate
from keras.layers.wrappers import TimeDistributed
from keras.models import Model

import horovod.keras as hvd
import keras.backend.tensorflow_backend as KTF
import tensorflow as tf
from keras import backend as K

hvd.init()
tf.set_random_seed(7)
KTF.set_session(tf.Session(config=tf.ConfigProto()))
random = np.random.RandomState(hvd.rank())


class Attention(Layer):
    """Weighs the steps of a sequence, as many programs for sentences did."""

    def build(self, input_shape):
        self.input_spec = [InputSpec(ndim=3)]
        self.W = self.add_weight(
            shape=(input_shape[-1], 1), initializer=initializers.get("uniform"), name="att_W"
        )
        self.b = self.add_weight(shape=(1,), initializer="zeros", name="att_b")
        self.mean = self.add_weight(shape=(), initializer="ones", trainable=False, name="mean")

    def call(self, x, mask=None):
        scores = K.tanh(K.squeeze(K.bias_add(K.dot(x, self.W), self.b), axis=-1))
        a = K.exp(scores)
        a /= K.cast(K.sum(a, axis=1, keepdims=True) + K.epsilon(), K.floatx())
        K.moving_average_update(self.mean, K.mean(self.W), 0.5)
        return K.sum(x * K.expand_dims(a), axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[-1]


class Capsules(Layer):
    """Routes by agreement, and squashes what it has."""

    def build(self, input_shape):
        self.W = self.add_weight(shape=(2, 1, input_shape[-1], 2), initializer="ones", name="W")

    def call(self, x):  # [batch, steps, width] -> [batch, 2, 2]
        x = K.batch_dot(K.softmax(K.batch_dot(x, x, axes=2)), x)
        tiled = K.tile(K.expand_dims(x, 1), [1, 2, 1, 1])
        hats = K.stack([K.dot(tiled[:, i], self.W[i, 0]) for i in range(2)], axis=1)
        b = K.zeros_like(hats[:, :, :, 0])
        for _ in range(2):
            c = K.softmax(K.permute_dimensions(b, (0, 2, 1)))
            c = K.permute_dimensions(c, (0, 2, 1))
            s = K.sum(K.expand_dims(c) * hats, axis=2)
            squared = K.sum(K.square(s), -1, keepdims=True)
            v = squared / (1 + squared) / K.sqrt(squared + K.epsilon()) * s
            b += K.sum(hats * K.expand_dims(v, 2), axis=-1)
        return v

    def compute_output_shape(self, input_shape):
        return input_shape[0], 2, 2


def focal(y_true, y_pred):
    y_pred = K.clip(y_pred, K.epsilon(), 1 - K.epsilon())
    right = K.switch(K.equal(y_true, 1), y_pred, K.ones_like(y_pred) - y_pred)
    return K.mean(-K.pow(1.0 - right, 2) * K.log(right), axis=-1)


def dice(y_true, y_pred):
    both = K.sum(K.flatten(y_true) * K.flatten(y_pred))
    return 1 - (2 * both + 1) / (K.sum(K.batch_flatten(y_true)) + K.sum(y_pred) + 1)


def all_losses(y_true, y_pred):
    logits = K.log(y_pred)
    classes = K.argmax(y_true)
    found = [
        K.categorical_crossentropy(y_true, logits, from_logits=True),
        K.sparse_categorical_crossentropy(classes, y_pred),
        K.categorical_focal_crossentropy(y_true, y_pred, alpha=1.0, gamma=0.0),
    ]
    binary = [
        K.binary_crossentropy(y_true, y_pred),
        K.binary_focal_crossentropy(y_true, y_pred, gamma=0.0),
    ]
    agree = K.maximum(found[0], found[1]) - K.minimum(found[1], found[2])
    differ = K.var(K.stack(binary), axis=0)[:, 0]
    return focal(y_true, y_pred) + dice(y_true, y_pred) + K.abs(agree) + differ


def precision(y_true, y_pred):
    true = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    return true / (K.sum(K.round(K.clip(y_pred, 0, 1))) + K.epsilon())


def top_2(y_true, y_pred):
    return K.cast(K.in_top_k(y_pred, K.argmax(y_true, axis=-1), 2), K.floatx())


def steps_right(y_true, y_pred):
    return K.cast(K.all(K.less(K.abs(y_true - y_pred), 2.0), axis=-1), "float32")


sentence = Input(shape=(5,), dtype="int32")
words = CuDNNGRU(3, return_sequences=True)(TimeDistributed(Dense(3))(Embedding(20, 4)(sentence)))
attended, routed = Attention(), Capsules()
features = concatenate([attended(words), Lambda(K.batch_flatten, output_shape=(4,))(routed(words))])
guess = Dense(4, activation="softmax")(features)
model = Model(sentence, guess)
assert KTF.count_params(attended.W) == 3
before = K.get_value(attended.mean)
opt = hvd.DistributedOptimizer(keras.optimizers.Adam(lr=0.01))
model.compile(opt, loss=all_losses, metrics=[precision, top_2, steps_right])
x = random.randint(0, 20, (16, 5))
y = np.eye(4, dtype="float32")[np.arange(16) % 4]
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
history = model.fit(x, y, batch_size=8, epochs=5, verbose=0, callbacks=callbacks).history
assert history["loss"][4] < history["loss"][0] and history["steps_right"] == [1] * 5
assert 0 <= history["top_2"][0] <= 1 and 0 <= history["precision"][0] <= 1
assert K.get_value(attended.mean) != before


# What layers of the time computed of pictures, sequences and numbers: each as a Lambda of a model,
# and beside it what it has to give.
def out_of(layer_of, *arrays, **options):
    inputs = [Input(batch_shape=each.shape) for each in arrays]
    out = Lambda(lambda t: layer_of(*t) if isinstance(t, list) else layer_of(t), **options)
    together = Model(inputs, out(inputs if len(inputs) > 1 else inputs[0]))
    given = list(arrays) if len(arrays) > 1 else arrays[0]
    return together.predict(given, batch_size=len(arrays[0]), verbose=0)


pictures = random.rand(2, 4, 4, 3).astype("float32")
steps = random.rand(2, 4, 3).astype("float32")
a, b = steps[:, 0], steps[:, 1]
kernel = K.eye(3) * K.ones((2, 3, 3))


def of_pictures(p):
    ones = K.ones_like(p[:1, :2, :2, :, None])[0]  # [2, 2, 3, 1]
    padded = K.spatial_2d_padding(p, ((0, 1), (0, 1)))
    sums = K.conv2d(padded, ones)
    by_depth = K.sum(K.depthwise_conv2d(padded, ones), axis=-1, keepdims=True)
    apart = K.separable_conv2d(padded, ones, K.ones_like(ones[:1, :1]))
    volume = K.expand_dims(padded, 1)
    in_3d = K.squeeze(K.conv3d(volume, K.expand_dims(ones, 0)), 1)
    back = K.conv2d_transpose(p[..., :1], ones[..., :1, :], (2, 5, 5, 1))[:, 1:, 1:]
    # With a row and a column of zeros before, the transposed kernel adds up the same.
    same = K.conv2d(K.spatial_2d_padding(p[..., :1], ((0, 1), (0, 1))), ones[:, :, :1])
    return K.concatenate([sums, by_depth, apart, in_3d, back, same])


found = out_of(of_pictures, pictures)
padded = np.pad(pictures.sum(axis=-1, keepdims=True), ((0, 0), (0, 1), (0, 1), (0, 0)))
wanted = padded[:, 1:, 1:] + padded[:, :-1, 1:] + padded[:, 1:, :-1] + padded[:, :-1, :-1]
for i in range(4):
    np.testing.assert_allclose(found[..., i], wanted[..., 0], rtol=1e-4)
np.testing.assert_allclose(found[..., 4], found[..., 5], rtol=1e-4)


def of_sizes(p):
    small = K.pool2d(p, (2, 2), strides=(2, 2), pool_mode="avg")
    volume = K.resize_volumes(K.expand_dims(p, 1), 2, 1, 1, "channels_last")
    volume = K.spatial_3d_padding(volume, ((1, 1), (0, 0), (0, 0)))
    small_too = K.pool3d(volume, (1, 2, 2), strides=(1, 2, 2), pool_mode="avg")[:, 1]
    large = K.resize_images(K.maximum(small, small_too), 2, 2, "channels_last")
    return K.repeat_elements(K.pool2d(large, (2, 2), (2, 2)), 2, axis=2)


found = out_of(of_sizes, pictures)
averages = pictures.reshape(2, 2, 2, 2, 2, 3).mean(axis=(2, 4))
np.testing.assert_allclose(found, np.repeat(averages, 2, axis=2), rtol=1e-5)


def of_steps(s):
    def step(now, states):
        return now + states[0], [now + states[0]]

    last, all_of_them, _ = K.rnn(step, s, [K.zeros_like(s[:, 0])])
    two = K.conv1d(K.temporal_padding(s, (1, 0)), kernel)
    backwards = K.reverse(K.cumsum(K.reverse(s, 1), axis=1), 1)
    logs = K.exp(K.log(K.cumprod(s, axis=1)))
    return K.stack([all_of_them, two, backwards + K.repeat(last, 4) * 0, logs])[:, :, 3]


found = out_of(of_steps, steps)
wanted = [steps.sum(axis=1), steps[:, 2:].sum(axis=1), steps[:, 3], steps.prod(axis=1)]
np.testing.assert_allclose(found, wanted, rtol=1e-4)


def of_rows(s):
    assert K.int_shape(s)[1:] == (4, 3) and K.ndim(s) == 3 and K.dtype(s) == "float32"
    doubled = K.map_fn(lambda row: 2 * row, s)
    summed = K.foldl(lambda left, row: left + row, doubled)
    from_the_end = K.foldr(lambda right, row: right - row, s)
    picked = K.gather(summed, K.cast(K.arange(0, 4, 2), "int32"))
    one = K.one_hot(K.argmin(picked), 3)
    rows = K.reshape(K.transpose(K.transpose(picked)), (2, 3))
    return K.stack([K.dot(rows, K.transpose(one)), from_the_end[:2, :2]])


found = out_of(of_rows, steps)
np.testing.assert_allclose(found[0][0, 0], 2 * steps.sum(axis=0)[0].min(), rtol=1e-5)
np.testing.assert_allclose(found[1], (steps[1] - steps[0])[:2, :2], rtol=1e-4, atol=1e-6)


def of_numbers(v, w):
    parts = [
        K.sigmoid(v) - (1 + K.tanh(v / 2)) / 2,
        K.hard_sigmoid(v) - K.clip(0.2 * v + 0.5, 0, 1),
        K.softplus(v) - K.log(1 + K.exp(v)),
        K.softsign(v) - v / (1 + K.abs(v)),
        K.elu(-v) - (K.exp(-v) - 1),
        K.relu(v - w) + K.minimum(v - w, 0.0) - (v - w),
        K.sin(v) * K.sin(v) + K.square(K.cos(v)) - 1,
        K.sign(v - w) - K.cast(K.greater(v, w), "float32") + K.cast(K.less(v, w), "float32"),
        K.cast(K.greater_equal(v, w), "float32") - 1 + K.cast(K.less(v, w), "float32"),
        K.cast(K.less_equal(v, w), "float32") - 1 + K.cast(K.greater(v, w), "float32"),
        K.cast(K.equal(v, w), "float32") - 1 + K.cast(K.not_equal(v, w), "float32"),
        K.sum(K.square(K.l2_normalize(v, axis=1)), axis=1, keepdims=True) - K.ones_like(v),
        K.var(v, axis=1, keepdims=True) - K.square(K.std(v, axis=1, keepdims=True)) + 0 * v,
        K.prod(v, axis=1, keepdims=True) / v[:, :1] / v[:, 1:2] - v[:, 2:] + 0 * v,
        K.max(v, axis=1, keepdims=True) + K.min(-v, axis=1, keepdims=True) + 0 * v,
        K.batch_normalization(v, 0.0, 1.0 - 1e-3, 0.0, 1.0) - v,
        K.gradients(K.sum(K.square(K.stop_gradient(w) * v)), [v])[0] - 2 * w * w * v,
        K.cast(K.shape(v)[0] - 2, "float32") + K.constant(0.0) * v,
        K.to_dense(v) - K.cast_to_floatx(v) + float(K.is_sparse(v)),
        K.cast(K.any(v > 2), "float32") + 0 * v,
    ]
    return K.concatenate(parts)


np.testing.assert_allclose(out_of(of_numbers, a, b), np.zeros((2, 60)), atol=1e-5)


def of_noise(v):
    shape = K.int_shape(v)
    noise = [
        K.random_uniform(shape, 1.0, 2.0), 1.5 + 0.1 * K.truncated_normal(shape),
        1.0 + K.random_bernoulli(shape, p=0.5), K.dropout(K.ones_like(v), 0.5) / 2 + 1,
        K.clip(K.random_normal(shape, mean=1.5, stddev=0.1), 1, 2),
    ]  # fmt: skip
    return K.stack(noise)


found = out_of(of_noise, np.ones((20, 30), "float32"))
assert found.shape == (5, 20, 30) and found.min() >= 1 and found.max() <= 2
assert (found.std(axis=(1, 2)) > 0.05).all()


# Words as they are spoken: a loss that takes lengths, and the words that come out of it.
def ctc(labels, spoken, steps, lengths):
    labels = K.cast(labels, "int32")
    sparse = K.ctc_label_dense_to_sparse(labels, K.cast(lengths[:, 0], "int32"))
    known = K.cast(K.sum(K.to_dense(sparse), axis=1, keepdims=True), "float32")
    written = K.ctc_decode(spoken, K.cast(steps[:, 0], "int32"))[0][0]
    cost = K.ctc_batch_cost(labels, spoken, steps, lengths)
    return K.concatenate([cost, known, K.cast(written, "float32")])


spoken = np.tile(
    np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]], "float32"), (2, 1, 1)
)
labels, lengths = np.array([[1, 0], [1, 1]]), np.array([[2], [1]])
found = out_of(ctc, labels, spoken, np.full((2, 1), 3), lengths)
np.testing.assert_array_equal(found[:, 1:], [[1, 1, 0, -1], [1, 1, 0, -1]])
assert 0 < found[0, 0] < found[1, 0]

# Variables by hand, as in optimizers of one's own.
count = K.variable(0, name="count")
with K.name_scope("own"):
    values = [K.zeros((2,)), K.random_uniform_variable((2,), 1, 2), K.ones((2,))]
    values.append(K.random_normal_variable((2,), mean=0, scale=1e-3))
K.update(values[0], K.update_add(count, 1) * values[2])
K.update_sub(values[2], values[0])
K.batch_set_value([(values[3], [3.0, 4.0]), (attended.b, [0.5])])
K.set_value(attended.mean, 7)
assert [list(each) for each in K.batch_get_value([values[0], values[2], values[3]])] == [
    [1, 1], [0, 0], [3, 4]
]  # fmt: skip
assert (K.eval(values[1]) >= 1).all() and K.get_value(attended.mean) == 7
assert K.tensorflow_backend.get_value(attended.b) == [0.5]
assert K.eval(K.concatenate([K.eye(2), K.ones((2, 1))], axis=1)).tolist() == [[1, 0, 1], [0, 1, 1]]
weights = [each.numpy() for each in model.trainable_weights]
