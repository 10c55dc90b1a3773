"""Batch normalization over the batches of all ranks."""

from typing import Any

import tensorflow as tf

from hvdlite.basics import size
from hvdlite.request import SUM
from hvdlite.tensorflow.ops import allreduce, grouped_allreduce


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
        """The mean and variance of all ranks' samples, from those of each rank's.

        The variance is the mean of the ranks' variances and of their means' squared distances
        from the common mean, weighted by their numbers of samples: Chan, Golub and LeVeque,
        "Updating formulae and a pairwise algorithm for computing sample variances", 1979. Nothing
        cancels, as it would in the mean of the squares less the square of the mean.
        """
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if size() == 1:
            return mean, variance
        mask = kwargs.get("mask", args[-1] if args else None)
        samples = tf.shape(inputs)[0] if mask is None else tf.math.count_nonzero(mask)
        samples = tf.cast(samples, mean.dtype)
        total, samples_of_all = grouped_allreduce([mean * samples, samples], op=SUM)
        common = total / samples_of_all
        spread = variance + tf.math.squared_difference(mean, common)
        return common, allreduce(spread * samples, op=SUM) / samples_of_all
