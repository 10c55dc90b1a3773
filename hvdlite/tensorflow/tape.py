"""DistributedGradientTape: a tape whose gradients are those of all ranks."""

from typing import Any

import tensorflow as tf

from hvdlite.gradients.options import GradientOptions, check_groups
from hvdlite.keras.optimizer import key_of, local_layers_of, name_of_variable
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.gradients import GradientSync


class _Tape(tf.GradientTape):
    _sync: GradientSync
    _local: dict[int, Any]

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._local[key_of(source)] = source

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """The gradients, reduced over the ranks, in the structure of `sources`."""
        kwargs.pop("use_generic_names", None)
        gradients = super().gradient(target, sources, *args, **kwargs)
        listed = tf.nest.flatten(sources)
        is_local = [key_of(each) in self._local for each in listed]
        names = [name_of_variable(each, i) for i, each in enumerate(listed)]
        is_sparse_tree = {"expand_composites": False}
        flat = tf.nest.flatten(gradients, **is_sparse_tree)
        return tf.nest.pack_sequence_as(
            sources, self._sync(flat, is_local, names), **is_sparse_tree
        )

    def get_local_and_global_gradients(
        self, target: Any, sources: list[Any], *args: Any, **kwargs: Any
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Pairs (variable, gradient): those of local variables, and those that are reduced."""
        local: list[tuple[Any, Any]] = []
        reduced: list[tuple[Any, Any]] = []
        gradients = self.gradient(target, sources, *args, **kwargs)
        for pair in zip(sources, gradients, strict=True):
            (local if key_of(pair[0]) in self._local else reduced).append(pair)
        return local, reduced


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape that records what `gradtape` does, and whose gradients are reduced over the ranks.

    Wrap the tape before or after the computation that it records. All gradients are reduced in
    one call; `device_*`, `num_groups` and `groups` are accepted for compatibility.
    """
    check_groups(num_groups, groups)
    options = GradientOptions(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    tape = object.__new__(_Tape)
    tape.__dict__ = gradtape.__dict__
    tape._local = {}
    # A tape lives for one step, but its buckets for all. Two tapes with the same options and
    # gradients of the same shapes share theirs, since one is done before the next begins.
    if options not in _syncs:
        in_use = {o: s for o, s in _syncs.items() if o.process_set.process_set_id is not None}
        _syncs.clear()
        _syncs.update(in_use)
        _syncs[options] = GradientSync(options)
    tape._sync = _syncs[options]
    return tape


_syncs: dict[GradientOptions, GradientSync] = {}


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, *args: Any, local_layers: Any = None, **kwargs: Any
) -> tf.GradientTape:
    """A tape whose gradients are reduced over the ranks, but for those of `local_layers`.

    The other arguments are those of `DistributedGradientTape`.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    for layer in local_layers_of(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
