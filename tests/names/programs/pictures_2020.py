"""In the style of 2020: pictures from folders, changed as they are read."""

import os

import numpy as np

import horovod.keras as hvd
import keras
from keras import backend as K
from keras.preprocessing.image import (
    DirectoryIterator, ImageDataGenerator, Iterator, NumpyArrayIterator, apply_affine_transform,
    apply_brightness_shift, apply_channel_shift, array_to_img, img_to_array, load_img,
    random_brightness, random_channel_shift, random_rotation, random_shear, random_shift,
    random_zoom, save_img,
)  # fmt: skip

hvd.init()
K.tensorflow_backend.clear_session()
np.random.seed(hvd.rank())
random = np.random.RandomState(hvd.rank())
folder = "./pictures-2020-%d" % hvd.rank()
for place in ("cat", "dog"):
    os.makedirs(os.path.join(folder, place))
    for i in range(2):
        save_img(os.path.join(folder, place, "%d.png" % i), 255 * random.rand(10, 8, 3))
image = img_to_array(load_img(os.path.join(folder, "cat", "0.png"), target_size=(8, 8)))
assert image.shape == (8, 8, 3) and array_to_img(image).size == (8, 8)


def by_scipy(change, picture, *args):
    """The picture changed; where SciPy is not installed, Keras says so, and it is as it was."""
    try:
        changed = change(picture, *args, row_axis=0, col_axis=1, channel_axis=2)
    except ImportError as error:
        assert "scipy" in str(error).lower()
        return picture
    assert changed.shape == picture.shape and not np.array_equal(changed, picture)
    return changed


def augment(picture):
    """As `preprocessing_function` wants it: one picture in, one of the same size out."""
    for change, most in (
        (random_rotation, 40), (random_shear, 20), (random_zoom, (0.5, 0.9)),
        (apply_affine_transform, 30),
    ):  # fmt: skip
        picture = by_scipy(change, picture, most)
    picture = by_scipy(random_shift, picture, 0.4, 0.4)
    low, high = picture.min(), picture.max()
    picture = random_channel_shift(picture, 20.0, channel_axis=2)
    assert picture.min() >= low - 1e-3 and picture.max() <= high + 1e-3
    seen.append(picture.shape)
    return random_brightness(picture, (0.8, 1.2))


seen = []
darker = apply_brightness_shift(image, 0.25)
assert darker.mean() < image.mean()
np.testing.assert_allclose(apply_channel_shift(image, 0, channel_axis=2), image)

train = ImageDataGenerator(rescale=1.0 / 255, preprocessing_function=augment, validation_split=0.5)
flow = train.flow_from_directory(
    folder, target_size=(8, 8), batch_size=2, class_mode="binary", subset="training"
)
held = train.flow_from_directory(
    folder, target_size=(8, 8), batch_size=2, class_mode="binary", subset="validation"
)
assert isinstance(flow, DirectoryIterator) and isinstance(flow, Iterator)
assert (flow.samples, held.samples, flow.class_indices) == (2, 2, {"cat": 0, "dog": 1})
model = keras.models.Sequential()
model.add(keras.layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 3)))
model.add(keras.layers.GlobalAveragePooling2D())
model.add(keras.layers.Dense(1, activation="sigmoid"))
opt = hvd.DistributedOptimizer(keras.optimizers.Adam(lr=0.001 * hvd.size()))
model.compile(
    opt, loss="binary_crossentropy", metrics=["accuracy"], experimental_run_tf_function=False
)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(
        keras.callbacks.ModelCheckpoint("./finetuned", save_weights_only=True, options=None)
    )
steps = {"workers": 1, "use_multiprocessing": False, "max_queue_size": 10}
history = model.fit(flow, steps_per_epoch=1, epochs=1, validation_data=held, validation_steps=1,
                    callbacks=callbacks, verbose=0, **steps)  # fmt: skip
assert "val_loss" in history.history and set(seen) == {(8, 8, 3)}
plain = ImageDataGenerator(rescale=1.0 / 255)
test = NumpyArrayIterator(
    np.stack([image, darker]), np.array([0, 1]), plain, batch_size=2, shuffle=False
)
loss, accuracy = model.evaluate(test, verbose=0, **steps)
given = model.predict(test, verbose=0, **steps)
np.testing.assert_allclose(
    given, model.predict(np.stack([image, darker]) / 255, verbose=0), rtol=1e-5
)
np.testing.assert_allclose(accuracy, ((given[:, 0] > 0.5) == [0, 1]).mean())
if hvd.rank() == 0:
    before = K.batch_get_value(model.weights)
    K.batch_set_value([(each, 0 * value) for each, value in zip(model.weights, before)])
    model.load_weights("./finetuned")
    for one, other in zip(K.batch_get_value(model.weights), before):
        np.testing.assert_array_equal(one, other)
weights = model.get_weights()
