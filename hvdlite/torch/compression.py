"""Compression of torch tensors."""

import torch

from hvdlite.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype) if tensor.dtype.is_floating_point else tensor


class FP16Compressor(_Cast):
    """Sends floating-point tensors in 16 bits."""

    wire_dtype = torch.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors in 16 bits with the exponent range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The choices for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
