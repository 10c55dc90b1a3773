"""Batch normalization over the batches of all ranks."""

from typing import Any

import tensorflow as tf

from hvdlite.basics import size
from hvdlite.request import SUM
from hvdlite.tensorflow.ops import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """BatchNormalization whose mean and variance in training are those of all ranks' batches.

    The batches may differ in size. Without training it never communicates.
    Raises ValueError for `fused`, which can't look beyond a rank.
    """

    def __init__(self, fused: bool = False, **kwargs: Any):
        if fused:
            raise ValueError("SyncBatchNormalization can't be fused")
        kwargs.setdefault("name", None)
        if not getattr(tf.keras, "__version__", "2").startswith("3"):  # tf_keras
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if size() == 1:
            return mean, variance
        rows = tf.cast(tf.shape(inputs)[0], mean.dtype)
        # Weighted by the number of rows, the means of x and of x squared can be added up.
        flat, squares = tf.reshape(mean, [-1]), tf.reshape(variance + mean * mean, [-1])
        total = allreduce(tf.concat([flat * rows, squares * rows, [rows]], 0), op=SUM)
        sums, sums_of_squares = tf.split(total[:-1] / total[-1], 2)
        mean = tf.reshape(sums, tf.shape(mean))
        return mean, tf.reshape(sums_of_squares, tf.shape(variance)) - mean * mean
