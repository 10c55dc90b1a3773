"""The course's models in Keras. Input: bytes [batch, 28, 28]; output: 10 logits."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers


def create_model(name: str = "cnn") -> keras.Model:
    """A fresh model, not yet compiled.

    Args:
        name: "cnn", the small network for CPUs (1.2 million parameters), or "wrn-16-10",
            Wide ResNet with 16 layers and width 10 (17 million), for GPUs.

    Raises:
        ValueError: there is no such model.
    """
    if name in MODELS:
        return MODELS[name]()
    raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")


def _from_bytes() -> list[keras.Layer]:
    """Pixels 0 to 255 as normalised images with one channel.

    The scale is fixed, so that a shard of the data needs no statistics of the rest.
    """
    return [layers.Reshape((28, 28, 1)), layers.Rescaling(1 / 90, offset=-72 / 90)]


def small_cnn() -> keras.Model:
    """Two convolutions and two dense layers: 28 x 28 pixels to class scores."""
    return keras.Sequential(
        [
            keras.Input((28, 28)),
            *_from_bytes(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def wide_resnet() -> keras.Model:
    """Wide residual network (Zagoruyko and Komodakis, 2016): 16 layers, 10 times as wide."""
    inputs = images = keras.Input((28, 28))
    for layer in _from_bytes():
        images = layer(images)
    images = _convolution(16, 3)(images)
    for group, channels in enumerate([160, 320, 640]):
        for block in range(2):  # in three groups: 6 x 2 + 4 layers
            images = _wide_block(images, channels, 2 if block == 0 and group else 1)
    images = layers.GlobalAveragePooling2D()(_norm_and_relu(images))
    return keras.Model(inputs, layers.Dense(10)(images))


def _wide_block(images: keras.KerasTensor, channels: int, stride: int) -> keras.KerasTensor:
    """Batch norm, ReLU and convolution, twice, with a short cut around them."""
    active = _norm_and_relu(images)
    around = images
    if stride > 1 or images.shape[-1] != channels:
        # Where the shape changes, the short cut starts behind the first norm.
        around = _convolution(channels, 1, stride)(active)
    active = _norm_and_relu(_convolution(channels, 3, stride)(active))
    return layers.Add()([around, _convolution(channels, 3)(layers.Dropout(0.01)(active))])


def _norm_and_relu(images: keras.KerasTensor) -> keras.KerasTensor:
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(images))


def _convolution(channels: int, size: int, stride: int = 1) -> keras.Layer:
    return layers.Conv2D(
        channels, size, stride, "same", use_bias=False, kernel_initializer="he_normal"
    )


MODELS: dict[str, Callable[[], keras.Model]] = {"cnn": small_cnn, "wrn-16-10": wide_resnet}
