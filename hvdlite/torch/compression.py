"""Gradient compression: send fewer bits than the gradient has."""

from typing import Any

import torch


class Compressor:
    """What a compressor of one's own must offer."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and whatever `decompress` needs."""
        raise NotImplementedError("a Compressor needs a method compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as it was before `compress`, from the reduced one."""
        raise NotImplementedError("a Compressor needs a method decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor


class _CastCompressor(Compressor):
    """Sends floating-point tensors as `wire_dtype`."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        small = tensor.to(cls.wire_dtype) if tensor.dtype.is_floating_point else tensor
        return small, tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating-point tensors in 16 bits."""

    wire_dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends floating-point tensors in 16 bits with the exponent range of float32."""

    wire_dtype = torch.bfloat16


def check_compression(compression: Any) -> None:
    """Raise TypeError for what is no Compressor."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            f"compression={compression!r} must be hvd.Compression.none, hvd.Compression.fp16, "
            "hvd.Compression.bf16 or a Compressor of your own"
        )


class Compression:
    """The choices for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
