"""Gradient compression: send fewer bits than the gradient has."""

from collections.abc import Sequence
from typing import Any


class Compressor:
    """What a compressor of one's own must offer."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever `decompress` needs."""
        raise NotImplementedError("a Compressor needs a method compress(tensor)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before `compress`, from the reduced one."""
        raise NotImplementedError("a Compressor needs a method decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Sends floating-point tensors as `wire_dtype`. A binding says how a tensor is cast."""

    wire_dtype: Any

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor as `dtype`; the tensor itself if it is not of floating point."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return cls.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return cls.cast(tensor, ctx)


def compress(tensors: Sequence[Any], compression: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """The tensors to send, and what `decompress` needs for each of them.

    Raises TypeError for what is no Compressor.
    """
    if compression is NoneCompressor:
        return tensors, ()
    check_compression(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def decompress(tensors: list[Any], contexts: Sequence[Any], compression: Any) -> list[Any]:
    """The tensors as they were before `compress`, from those that have been sent."""
    if compression is NoneCompressor:
        return tensors
    return list(map(compression.decompress, tensors, contexts))


def check_compression(compression: Any) -> None:
    """Raise TypeError for what is no Compressor."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            f"compression={compression!r} must be hvd.Compression.none, hvd.Compression.fp16, "
            "hvd.Compression.bf16 or a Compressor of your own"
        )
