"""Gradients of torch, as tensors, for the GradientReducer, which knows arrays only."""

from collections.abc import Sequence

import torch

from hvdlite.gradients.buckets import Bucket, Gradient
from hvdlite.gradients.options import GradientOptions
from hvdlite.gradients.reducer import GradientReducer
from hvdlite.torch.gpu_buckets import make_buckets, wire_dtype
from hvdlite.torch.tensors import current_stream, numpy_dtype


class TensorReducer(GradientReducer):
    """A GradientReducer for the gradients of tensors."""

    def __init__(self, options: GradientOptions):
        super().__init__(options)
        self.tensors: list[torch.Tensor] = []  # whose gradients are laid out
        self._forms: list[tuple] = []

    def lay_out_for(
        self, tensors: Sequence[torch.Tensor], names: Sequence[str], sparse: Sequence[int] = ()
    ) -> None:
        """`lay_out` for the gradients of these tensors."""
        self.tensors, dtype = list(tensors), self.options.wire_dtype
        gradients = [
            Gradient(
                name,
                tuple(tensor.shape),
                numpy_dtype(wire_dtype(tensor, dtype)),
                current_stream(tensor.device).name,
            )
            for name, tensor in zip(names, tensors, strict=True)
        ]
        self.lay_out(gradients, sparse)

    def make_buckets(
        self, gradients: Sequence[Gradient], positions: Sequence[int]
    ) -> Sequence[Bucket]:
        return make_buckets(gradients, positions, self.tensors, self.options.wire_dtype)

    def reduce_list(
        self, gradients: Sequence[torch.Tensor], names: Sequence[str]
    ) -> list[torch.Tensor]:
        """The reduced gradients, which stay valid until the next call.

        Through a Compressor of the user's own each of them passes on its way there and back.
        """
        compression, contexts = self.options.compression, []
        if self.options.own_compressor:
            gradients, contexts = zip(*map(compression.compress, gradients), strict=True)
        forms = [(each.shape, each.dtype, each.device) for each in gradients]
        if not self.is_current or forms != self._forms:
            self._forms = forms
            # Tensors like these, without their memory.
            self.lay_out_for([each.new_empty(()).expand(each.shape) for each in gradients], names)
        results = list(gradients)

        def given(bucket: Bucket) -> list[torch.Tensor]:
            return [gradients[i] for i in bucket.members]

        self.reduce(lambda bucket: bucket.fill(given(bucket), self.sparse_presence))
        for bucket in self.buckets:
            reduced = bucket.reduced(given(bucket), self)
            for i, each in zip(bucket.members, reduced, strict=True):
                results[i] = each
        if contexts:
            results = list(map(compression.decompress, results, contexts))
        return results
