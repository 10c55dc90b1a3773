"""In the style of 2018: pieces of a model written with keras.backend, tried on arrays first."""

import numpy as np

import horovod.keras as hvd
import keras
from keras import backend as K

hvd.init()
K.tensorflow_backend.set_image_data_format("channels_last")
a = np.random.RandomState(hvd.rank()).rand(4, 3).astype(K.floatx()) + 0.1
b = a[:, ::-1].copy()
x, y = K.variable(a), K.constant(b)


def same(tensor, array):
    array = K.eval(array) if hasattr(array, "numpy") else array
    np.testing.assert_allclose(K.eval(tensor), array, rtol=1e-5, atol=1e-6)


assert K.int_shape(x) == (4, 3) and K.ndim(x) == 2 and K.dtype(x) == "float32"
assert K.count_params(x) == 12 and list(K.get_value(K.shape(x))) == [4, 3]

# Of each element.
same(K.abs(-x), a)
same(K.cos(x) ** 2 + K.sin(x) ** 2, np.ones((4, 3)))
same(K.exp(K.log(x)), a)
same(K.sqrt(K.square(x)), a)
same(K.pow(x, 3), a**3)
same(K.round(x), np.round(a))
same(K.sign(x - 0.5), np.sign(a - 0.5))
same(K.clip(x, 0.3, 0.6), np.clip(a, 0.3, 0.6))
same(
    K.relu(x - 0.5, alpha=0.1, max_value=0.2),
    np.where(a > 0.5, np.clip(a - 0.5, 0, 0.2), (a - 0.5) / 10),
)
same(K.elu(-x), np.exp(-a) - 1)
same(K.sigmoid(x), (1 + K.eval(K.tanh(x / 2))) / 2)
same(K.hard_sigmoid(x), 0.2 * a + 0.5)
same(K.softplus(x), np.log1p(np.exp(a)))
same(K.softsign(x), a / (1 + a))
same(K.softmax(x), np.exp(a) / np.exp(a).sum(axis=1, keepdims=True))
same(K.maximum(x, y) + K.minimum(x, y), a + b)
for ours, theirs in (
    (K.equal, np.equal), (K.not_equal, np.not_equal), (K.less, np.less),
    (K.less_equal, np.less_equal), (K.greater, np.greater), (K.greater_equal, np.greater_equal),
):  # fmt: skip
    same(K.cast(ours(x, y), "int32"), theirs(a, b))
same(K.switch(K.greater(x, y), x, y), np.maximum(a, b))
same(K.stop_gradient(x), a)

# Over an axis.
for ours, theirs in (
    (K.sum, np.sum), (K.mean, np.mean), (K.prod, np.prod), (K.max, np.max), (K.min, np.min),
    (K.std, np.std), (K.var, np.var),
):  # fmt: skip
    same(ours(x, axis=-1, keepdims=True), theirs(a, axis=-1, keepdims=True))
same(K.argmax(x), a.argmax(axis=1))
same(K.argmin(x, axis=0), a.argmin(axis=0))
same(K.cumsum(x), a.cumsum(axis=0))
same(K.cumprod(x, axis=1), a.cumprod(axis=1))
assert K.eval(K.any(x > 0.5)) == (a > 0.5).any() and K.eval(K.all(x > 0.05))
same(K.l2_normalize(x, axis=1), a / np.sqrt((a**2).sum(axis=1, keepdims=True)))

# Shapes.
same(K.flatten(x), a.ravel())
same(K.batch_flatten(K.reshape(x, (4, 3, 1))), a)
same(K.transpose(K.permute_dimensions(x, (1, 0))), a)
same(K.squeeze(K.expand_dims(x, 1), 1), a)
same(K.concatenate([x, y], axis=0), np.concatenate([a, b]))
same(K.stack([x, y]), [a, b])
same(K.repeat(x, 2), np.repeat(a[:, None], 2, axis=1))
same(K.repeat_elements(x, 2, axis=1), np.repeat(a, 2, axis=1))
same(K.tile(x, (2, 1)), np.tile(a, (2, 1)))
same(K.reverse(x, 1), b)
same(K.gather(x, [2, 0]), a[[2, 0]])
same(K.one_hot(K.constant([2, 0], dtype="int32"), 3), np.eye(3)[[2, 0]])
same(K.arange(1, 7, 2), [1, 3, 5])
same(K.zeros((2, 3)) + K.ones((2, 3)) * 2, np.full((2, 3), 2.0))
same(K.eye(3) - K.zeros_like(K.eye(3)), np.eye(3) * K.eval(K.ones_like(K.eye(3))))
assert K.cast_to_floatx([1, 2]).dtype == "float32" and not K.is_sparse(x)
assert K.to_dense(x) is x

# Products, losses, layers' own.
same(K.dot(x, K.transpose(y)), a @ b.T)
same(K.batch_dot(x, y, axes=1), (a * b).sum(axis=1, keepdims=True))
same(K.bias_add(x, K.constant([1.0, 2.0, 3.0])), a + [1, 2, 3])
same(
    K.batch_normalization(x, K.mean(x, 0), K.var(x, 0), 0.5, 2.0),
    2 * (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-3) + 0.5,
)
p = a / a.sum(axis=1, keepdims=True)
hot, classes = np.eye(3, dtype="float32")[[0, 1, 2, 0]], np.array([0, 1, 2, 0])
chosen = p[np.arange(4), classes]
same(K.categorical_crossentropy(hot, p), -np.log(chosen))
same(K.sparse_categorical_crossentropy(classes, p), -np.log(chosen))
same(K.categorical_focal_crossentropy(hot, p), -0.25 * (1 - chosen) ** 2 * np.log(chosen))
same(K.max(K.binary_crossentropy(hot, p) * hot, axis=1), -np.log(chosen))
same(
    K.max(K.binary_focal_crossentropy(hot, p) * hot, axis=1), -((1 - chosen) ** 2) * np.log(chosen)
)
same(K.in_top_k(p, classes, 1), p.argmax(axis=1) == classes)

# Pictures: a kernel of ones adds up what it covers.
picture = K.reshape(K.arange(16, dtype="float32"), (1, 4, 4, 1))
ones = K.ones((2, 2, 1, 1))
sums = picture[:, :-1, :-1] + picture[:, 1:, :-1] + picture[:, :-1, 1:] + picture[:, 1:, 1:]
assert K.eval(sums)[0, 0, 0] == 10
same(K.conv2d(picture, ones), sums)
same(K.depthwise_conv2d(picture, ones), sums)
same(K.separable_conv2d(picture, ones, 2 * K.ones((1, 1, 1, 1))), 2 * sums)
same(K.conv3d(picture[:, None], K.ones((1, 2, 2, 1, 1)))[:, 0], sums)
same(K.conv1d(picture[:, 0], K.ones((2, 1, 1))), [[[1], [3], [5]]])
same(K.conv2d_transpose(sums[:, :1, :1], ones, (1, 2, 2, 1)), np.full((1, 2, 2, 1), 10.0))
same(K.pool2d(picture, (2, 2), (2, 2)), picture[:, 1::2, 1::2])
same(K.pool3d(picture[:, None], (1, 2, 2), (1, 2, 2), pool_mode="avg")[:, 0], sums[:, ::2, ::2] / 4)
same(K.resize_images(picture, 2, 2, "channels_last")[:, ::2, ::2], picture)
same(K.resize_volumes(picture[:, None], 2, 1, 1, "channels_last")[:, 1], picture)
same(K.spatial_2d_padding(picture)[:, 1:-1, 1:-1], picture)
same(K.spatial_3d_padding(picture[:, None])[:, 1, 1:-1, 1:-1], picture)
assert K.int_shape(K.temporal_padding(picture[:, 0], (0, 3))) == (1, 7, 1)

# One after the other.
same(K.map_fn(lambda row: row * 2, x), 2 * a)
same(K.foldl(lambda left, row: left - row, x), a[0] - a[1] - a[2] - a[3])
same(K.foldr(lambda right, row: right - row, x), a[3] - a[2] - a[1] - a[0])
last, outputs, states = K.rnn(
    lambda t, s: (t + s[0], [t + s[0]]), K.expand_dims(x), [K.zeros((4, 1))]
)
same(outputs[..., 0], a.cumsum(axis=1))
same(last, K.eval(states[0]))
labels, lengths = K.constant([[1, 0]], dtype="int32"), K.constant([2], dtype="int32")
spoken = K.constant([[[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]])
assert list(K.eval(K.ctc_label_dense_to_sparse(labels, lengths))[0]) == [1, 0]
# Five paths write "1, 0" in three steps; `2` is the blank.
paths = 0.8 * 0.1 * 0.8 + 0.8 * 0.8 * 0.8 + 0.1 * 0.1 * 0.8 + 0.8 * 0.1 * 0.8 + 0.8 * 0.1 * 0.1
same(K.ctc_batch_cost(labels, spoken, K.constant([[3]]), K.constant([[2]])), [[-np.log(paths)]])
assert list(K.eval(K.ctc_decode(spoken, K.constant([3]))[0][0])[0]) == [1, 0, -1]

# Random numbers.
for random in (K.random_uniform, K.random_normal, K.truncated_normal):
    assert K.eval(random((50,), seed=1)).std() > 0.1
assert abs(K.eval(K.truncated_normal((500,)))).max() <= 2
assert set(K.eval(K.random_bernoulli((50,), p=0.5, seed=1))) == {0, 1}
assert K.eval(K.random_uniform_variable((50,), 2, 3)).min() >= 2
assert abs(K.eval(K.random_normal_variable((50,), 5, 0.1)).mean() - 5) < 0.2
assert set(np.unique(K.eval(K.dropout(K.ones((50,)), 0.5, seed=1)))) == {0, 2}

# Variables, also those of a model.
K.set_value(x, np.zeros((4, 3)))
K.update(x, K.ones((4, 3)))
K.update_add(x, K.ones((4, 3)))
K.update_sub(x, 0.5 * K.ones((4, 3)))
K.moving_average_update(x, K.zeros((4, 3)), 0.5)
same(x, np.full((4, 3), 0.75))
with K.name_scope("dense"):
    model = keras.models.Sequential([keras.layers.Dense(2, input_shape=(3,))])
kernel, bias = model.weights
assert np.sum([K.count_params(each) for each in model.trainable_weights]) == 8
K.batch_set_value([(kernel, np.ones((3, 2))), (bias, np.zeros(2))])
same(K.update_add(bias, K.constant([1.0, 2.0])), [1, 2])
np.testing.assert_array_equal(K.batch_get_value(model.weights)[0], np.ones((3, 2)))
assert K.dtype(kernel) == "float32" and K.ndim(kernel) == 2 and K.int_shape(bias) == (2,)
same(K.mean(kernel) + K.sum(bias), 4.0)
slope = keras.layers.Lambda(lambda t: K.gradients(K.sum(K.square(t)), [t])[0], input_shape=(3,))
slopes = keras.models.Sequential([slope]).predict(b, verbose=0)
np.testing.assert_allclose(slopes, 2 * b, rtol=1e-6)
weights = model.get_weights()
