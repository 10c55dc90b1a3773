"""Compression of TensorFlow's tensors."""

import tensorflow as tf

from hvdlite.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @staticmethod
    def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor


class FP16Compressor(_Cast):
    """Sends floating-point tensors in 16 bits."""

    wire_dtype = tf.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors in 16 bits with the exponent range of float32."""

    wire_dtype = tf.bfloat16


class Compression:
    """The choices for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
