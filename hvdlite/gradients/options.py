"""The arguments of DistributedOptimizer and DistributedGradientTape, checked once."""

import numbers
from dataclasses import dataclass
from typing import Any

from hvdlite.basics import check_process_set
from hvdlite.compression import NoneCompressor, check_compression
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import ADASUM, AVERAGE, SUM


@dataclass(frozen=True)
class GradientOptions:
    """How gradients are to be reduced; the names are those of Horovod's arguments.

    Raises TypeError or ValueError for values that make no sense.
    """

    compression: Any = NoneCompressor
    op: int = AVERAGE
    gradient_predivide_factor: float = 1.0
    sparse_as_dense: bool = False
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        check_compression(self.compression)
        check_process_set(self.process_set)
        check_passes(self.backward_passes_per_step)
        if self.op not in (AVERAGE, SUM, ADASUM):
            raise ValueError(f"op must be hvd.Average, hvd.Sum or hvd.Adasum, not {self.op!r}")
        factor = self.gradient_predivide_factor
        if factor == 0 or (factor != 1.0 and self.op != AVERAGE):
            raise ValueError("gradient_predivide_factor needs op=hvd.Average and is never 0")

    @property
    def active(self) -> bool:
        """Whether there are other ranks to reduce with."""
        return self.process_set.included() and self.process_set.size() > 1

    @property
    def scales(self) -> tuple[float, float]:
        """The factors before and after the sum."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @property
    def local_scale(self) -> int:
        """What a gradient that stays local is divided by, to weigh as much as an averaged one."""
        return self.process_set.size() if self.scale_local_gradients else 1

    @property
    def wire_dtype(self) -> Any:
        """The framework's dtype that floating-point gradients are sent as; None: their own."""
        return getattr(self.compression, "wire_dtype", None)

    @property
    def compressor(self) -> Any:
        """What each gradient passes through on its way: a Compressor of the user's own, or none."""
        return self.compression if self.wire_dtype is None else NoneCompressor


def check_passes(passes: Any) -> int:
    """A number of backward passes; raises ValueError for what is none."""
    if not isinstance(passes, numbers.Integral) or passes <= 0:
        raise ValueError(f"backward_passes_per_step={passes!r}: it must be 1 or more")
    return passes


def check_groups(num_groups: int, groups: Any) -> None:
    """Raise ValueError for groups of parameters that make no sense.

    All gradients of a dtype are reduced together anyway, so that nothing else is done with them.
    """
    groups = groups if groups is not None or num_groups == 0 else num_groups
    if isinstance(groups, list):
        members = [member for group in groups for member in group]
        if not all(hasattr(member, "shape") for member in members):
            raise ValueError("groups must be a positive number or a list of lists of parameters")
        if len(set(map(id, members))) < len(members):
            raise ValueError("groups: a parameter may be in one group only")
    elif groups is not None and (not isinstance(groups, int) or groups <= 0):
        raise ValueError("groups must be a positive number or a list of lists of parameters")
