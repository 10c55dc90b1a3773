"""In the style of 2016: a residual network by hand, pictures changed one by one, old modules."""

import os

import keras
import numpy as np
from keras import objectives
from keras.engine.topology import Input, Layer, get_source_inputs
from keras.engine.training import Model
from keras.layers.advanced_activations import LeakyReLU, PReLU, ThresholdedReLU
from keras.layers.convolutional import Conv2D, ZeroPadding2D
from keras.layers.core import Activation, Dense, Dropout
from keras.layers.merge import add
from keras.layers.noise import GaussianNoise
from keras.layers.normalization import BatchNormalization
from keras.layers.pooling import GlobalAveragePooling2D, MaxPooling2D
from keras.preprocessing import image
from keras.utils.data_utils import get_file
from keras.utils.generic_utils import CustomObjectScope, Progbar, get_custom_objects
from keras.utils.np_utils import to_categorical
from keras.utils.vis_utils import plot_model

import horovod.keras as hvd
from keras import backend as K

hvd.init()
random = np.random.RandomState(hvd.rank())
np.random.seed(hvd.rank())


class Scale(Layer):
    """Of the pretrained networks of that time."""

    def __init__(self, axis=-1, **kwargs):
        self.axis = axis
        super().__init__(**kwargs)

    def build(self, input_shape):
        self.gamma = self.add_weight(
            shape=(input_shape[self.axis],), initializer="one", name="gamma"
        )
        super().build(input_shape)

    def call(self, x, mask=None):
        return x * self.gamma

    def get_config(self):
        return {**super().get_config(), "axis": self.axis}


def block(x, filters):
    y = ZeroPadding2D((1, 1))(x)
    y = Conv2D(filters, (3, 3), use_bias=False)(y)
    y = Scale(axis=3)(BatchNormalization(fused=False, axis=3)(y))
    y = PReLU(shared_axes=[1, 2])(y)
    return LeakyReLU(alpha=0.1)(add([x, y]))


pictures = Input(shape=(8, 8, 3))
x = Conv2D(4, (1, 1))(GaussianNoise(0.01)(pictures))
x = MaxPooling2D((2, 2))(block(x, 4))
x = ThresholdedReLU(theta=0.01)(block(x, 4))
x = Dropout(0.1)(GlobalAveragePooling2D()(x))
out = Activation("softmax")(Dense(3)(x))
assert get_source_inputs(out)[0] is pictures
model = Model(get_source_inputs(out), out)
opt = hvd.DistributedOptimizer(
    keras.optimizers.SGD(lr=0.01, decay=1e-6, momentum=0.9, nesterov=True)
)
model.compile(optimizer=opt, loss=objectives.categorical_crossentropy, metrics=["accuracy"])

# What pictures are changed by, where nothing is left to chance.
x = 255 * random.rand(12, 8, 8, 3).astype("float32")
y = to_categorical(np.arange(12) % 3, 3)
axes = {"row_axis": 0, "col_axis": 1, "channel_axis": 2}
for change, wanted in (
    (lambda p: image.random_rotation(p, 0, **axes), x[0]),
    (lambda p: image.random_shift(p, 0, 0, **axes), x[0]),
    (lambda p: image.random_shear(p, 0, **axes), x[0]),
    (lambda p: image.random_zoom(p, (1, 1), **axes), x[0]),
    (lambda p: image.apply_affine_transform(p, theta=90, **axes), np.rot90(x[0])),
):
    try:
        np.testing.assert_allclose(change(x[0]), wanted, atol=1e-2)
    except ImportError as error:  # it is said so where it is not installed
        assert "scipy" in str(error).lower(), error
np.testing.assert_allclose(image.random_channel_shift(x[0], 0, channel_axis=2), x[0])
bright = image.random_brightness(x[0], (0.5, 0.5))
np.testing.assert_allclose(bright, image.apply_brightness_shift(x[0], 0.5))
half = image.apply_brightness_shift(x[0], 0.5, scale=False)
np.testing.assert_allclose(half, x[0].astype(int) // 2, atol=1)
shifted = image.apply_channel_shift(x[0] / 2, 5, channel_axis=2)
np.testing.assert_allclose(shifted, np.clip(x[0] / 2 + 5, (x[0] / 2).min(), (x[0] / 2).max()))


class Pairs(image.Iterator):
    """Yields pictures and labels; the last step of a pass may be smaller."""

    def __init__(self):
        super().__init__(len(x), 8, shuffle=False, seed=None)
        self.sizes = []

    def _get_batches_of_transformed_samples(self, index_array):
        self.sizes.append(len(index_array))
        return x[index_array], y[index_array]


assert [len(Pairs()[i][0]) for i in range(2)] == [8, 4] and len(Pairs()) == 2
folder = "./pictures-2016-%d" % hvd.rank()
for label in ("cat", "dog"):
    os.makedirs(os.path.join(folder, label))
    image.save_img(os.path.join(folder, label, "a.png"), x[0])
generator = image.ImageDataGenerator(samplewise_center=True)
files = image.DirectoryIterator(folder, generator, target_size=(8, 8), batch_size=2)
assert files.class_indices == {"cat": 0, "dog": 1} and files[0][0].shape == (2, 8, 8, 3)
arrays = image.NumpyArrayIterator(x, y, generator, batch_size=6)
assert abs(arrays[0][0].mean()) < 1e-3 and len(arrays) == 2

callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.TensorBoard("./logs-2016", batch_size=4, write_grads=True))
    path = "./weights-{epoch:02d}.hdf5"
    callbacks.append(keras.callbacks.ModelCheckpoint(path, load_weights_on_restart=False, period=2))
pairs = Pairs()
history = model.fit_generator(
    pairs,
    steps_per_epoch=3,
    epochs=2,
    verbose=0,
    callbacks=callbacks,
    max_queue_size=4,
    workers=1,
    validation_data=arrays,
    validation_steps=1,
)
assert pairs.sizes[:6] == 3 * [8, 4]
assert set(history.history) >= {"loss", "val_loss", "accuracy"}
scores = model.evaluate_generator(Pairs(), 2)
given = model.predict_generator(Pairs(), 2)
np.testing.assert_allclose(given, model.predict_proba(x), rtol=1e-4)
np.testing.assert_allclose(scores[0], -np.log(given[y == 1]).mean(), rtol=1e-3)
if hvd.rank() == 0:
    assert not os.path.exists("./weights-01.hdf5")
    with CustomObjectScope({"Scale": Scale}):
        again = keras.models.load_model("./weights-02.hdf5")
    for one, other in zip(again.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(one, other)
    with open("./somewhere.txt", "w") as file:
        file.write("weights")
    found = get_file(
        "copy.txt", "file://" + os.path.abspath("./somewhere.txt"), cache_dir="./keras"
    )
    assert open(found).read() == "weights" and "Scale" not in get_custom_objects()
    bar = Progbar(2, verbose=0)
    bar.update(1, [("loss", 2.0)])
    bar.update(2, [("loss", 4.0)])
    try:
        plot_model(model, to_file="model.png")
    except ImportError:  # pydot is not installed
        pass
assert K.image_data_format() == "channels_last"
weights = [each.numpy() for each in model.trainable_weights]
