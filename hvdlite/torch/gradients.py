"""What happens to gradients between backward() and step(): counted, gathered, reduced."""

import contextlib
import operator
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from hvdlite.basics import engine, process_set_number
from hvdlite.engine import Engine
from hvdlite.exceptions import HorovodInternalError
from hvdlite.process_sets import ProcessSet
from hvdlite.request import AVERAGE, Descriptor, Request
from hvdlite.torch import ops
from hvdlite.torch.buckets import Bucket
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.gpu_buckets import make_buckets
from hvdlite.torch.handles import synchronize
from hvdlite.torch.sparse import gather_sparse


@dataclass(eq=False)
class GradientSync:
    """The gradients of one DistributedOptimizer.

    A hook on each parameter counts the backward passes and, after the last one, copies the
    gradient into its bucket while it is still in the cache. `synchronize` brings in what is
    missing and reduces the buckets.
    """

    param_groups: list[dict[str, Any]]
    names: dict[torch.Tensor, str]
    compression: type[Compressor]
    backward_passes_per_step: int
    op: int
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet

    def __post_init__(self) -> None:
        self._passes: dict[int, int] = {}  # by id(): a tensor's own hash takes longer
        self._bucket_of: dict[int, Bucket] = {}
        self._buckets: list[Bucket] = []
        self._under_way: dict[Bucket, Request] = {}
        self._last: Request | None = None  # the last one that has begun
        self._layout: list[torch.Tensor] = []
        self._sparse: set[int] = set()
        self._hooks: dict[int, Any] = {}
        self._warned = False
        self.active = self.process_set.included() and self.process_set.size() > 1
        if self.active:
            self._meet_engine()
            self._add_hooks()

    def _meet_engine(self) -> None:
        self._engine = engine()
        number = self._engine.next_name("gradients", process_set_number(self.process_set))
        self._name = f"gradients.{number}"

    # Counting

    def _parameters(self) -> list[torch.Tensor]:
        return [
            param for group in self.param_groups for param in group["params"] if param.requires_grad
        ]

    def _add_hooks(self) -> None:
        this = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            sync = this()
            if sync is not None:
                sync._count(param)

        for param in self._parameters():
            if id(param) not in self._hooks:
                handle = param.register_post_accumulate_grad_hook(hook)
                self._hooks[id(param)] = handle

    def _count(self, param: torch.Tensor) -> None:
        passes = self._passes.get(id(param), 0) + 1
        if passes > self.backward_passes_per_step:
            raise AssertionError(
                f"gradients of {self.names.get(param, 'a parameter')} were computed more than "
                f"backward_passes_per_step={self.backward_passes_per_step} times before step(). "
                "Raise backward_passes_per_step to accumulate gradients"
            )
        self._passes[id(param)] = passes
        if passes == self.backward_passes_per_step:
            bucket = self._bucket_of.get(id(param))
            begins = bucket is not None and bucket.put_early(param) and self._engine is engine()
            if begins and all(self._passes.get(id(other)) == passes for other in bucket.params):
                self._start(bucket)
            pending = self._last is not None and not self._last.done
            if pending and self._engine is engine():  # not one of before an interrupt
                self._engine.progress()

    def in_flight(self) -> bool:
        """Whether there are gradients that await `synchronize`."""
        return any(n >= self.backward_passes_per_step for n in self._passes.values())

    def counted(self) -> bool:
        """Whether there was a backward pass since the last `synchronize`."""
        return bool(self._passes)

    def forget(self) -> None:
        """Forget the backward passes counted so far, and what they have begun to reduce."""
        self._passes.clear()
        if self._under_way and self._engine is engine():
            with contextlib.suppress(HorovodInternalError):
                self._wait(self._engine, process_set_number(self.process_set))

    # Reducing

    def synchronize(self, param_groups: list[dict[str, Any]]) -> None:
        """Reduce all gradients over the ranks; every rank of the set must call it."""
        self.param_groups = param_groups  # load_state_dict makes new ones
        if not self.active:
            self._passes.clear()
            return
        self._warn_of_early_step()
        if self.compression in (Compression.none, Compression.fp16, Compression.bf16):
            self._synchronize_buckets()
        else:
            self._synchronize_compressed()
        self._passes.clear()

    def _warn_of_early_step(self) -> None:
        done = max(self._passes.values(), default=0)
        if 0 < done < self.backward_passes_per_step and not self._warned:
            self._warned = True
            warnings.warn(
                f"step() or synchronize() after {done} of {self.backward_passes_per_step} backward "
                "passes: each call reduces the gradients. To save time, call it once in "
                "backward_passes_per_step passes",
                stacklevel=4,
            )

    def _synchronize_buckets(self) -> None:
        group, current = process_set_number(self.process_set), engine()
        try:
            self._reduce_buckets(group, current)
        except HorovodInternalError:
            if current.broken or not self._layout:
                raise
            # A rank has asked for a new layout, and no gradient has been changed.
            self._layout = []
            self._reduce_buckets(group, current)

    def _reduce_buckets(self, group: int, current: Engine) -> None:
        new_sparse = self._new_sparse()
        if new_sparse and self._layout and self._engine is current:
            # The other ranks may know nothing of it. Calls that differ from theirs under the same
            # names fail on all ranks, which then make their buckets anew.
            for bucket in self._waiting_buckets():
                barrier = Request(Descriptor("barrier", self._name_of(bucket)))
                current.submit([barrier], group)
                self._under_way[bucket] = barrier
            self._wait(current, group)
        self._update_layout(group, new_sparse)
        for bucket in self._waiting_buckets():
            self._start(bucket)
        self._wait(current, group)
        for bucket in self._buckets:
            bucket.take()
        for param in self._layout:
            if id(param) in self._sparse:
                self._finish_sparse(param)

    def _waiting_buckets(self) -> list[Bucket]:
        return [bucket for bucket in self._buckets if bucket not in self._under_way]

    def _name_of(self, bucket: Bucket) -> str:
        return f"{self._name}.{self._buckets.index(bucket)}"

    def _start(self, bucket: Bucket) -> None:
        """Pack a bucket with this rank's gradients and start to reduce it."""
        bucket.fill()
        members = ()
        if self._engine.timeline:
            members = [f"allreduce.{self.names.get(param, 'noname')}" for param in bucket.params]
        name = self._name_of(bucket)
        request = bucket.request(
            name, self.op, 1 / self.predivide_factor, self.predivide_factor, members
        )
        self._engine.submit([request], process_set_number(self.process_set))
        self._last = self._under_way[bucket] = request

    def _wait(self, current: Engine, group: int) -> None:
        """Wait for all reductions under way; raises the first error once all are over."""
        errors = []
        for bucket, request in self._under_way.items():
            try:
                current.wait(request, group)
                bucket.settle()
            except HorovodInternalError as error:
                errors.append(error)
        self._under_way.clear()
        if errors:
            raise errors[0]

    def _new_sparse(self) -> list[int]:
        """The positions of parameters whose gradient is sparse for the first time on this rank."""
        return [
            i
            for i, param in enumerate(self._parameters())
            if param.grad is not None and param.grad.is_sparse and id(param) not in self._sparse
        ]

    def _update_layout(self, group: int, new_sparse: list[int]) -> None:
        """Make the buckets anew where the parameters or the ranks are not those of last time."""
        params = self._parameters()
        same = len(params) == len(self._layout) and all(map(operator.is_, params, self._layout))
        if same and not new_sparse and self._engine is engine():
            return
        self._under_way.clear()
        if self._engine is not engine():
            self._meet_engine()
        self._add_hooks()  # for parameters that were frozen or not there before
        # A rank that has not looked anything up can't know that a gradient will be sparse.
        survey = engine().exchange("survey", f"{self._name}.sparse", new_sparse, group)
        self._sparse.update(id(params[i]) for some in survey.result for i in some or ())
        self._layout = params
        dense = [p for p in params if id(p) not in self._sparse or self.sparse_as_dense]
        wire = getattr(self.compression, "wire_dtype", None)
        self._buckets = make_buckets(dense, wire, self._name, group)
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.params}

    def _finish_sparse(self, param: torch.Tensor) -> None:
        if self.sparse_as_dense:
            if param.grad is not None:
                param.grad = param.grad.to_sparse(1)  # what the optimizer was given before
            return
        name = self.names.get(param, "noname")
        param.grad = gather_sparse(
            param.grad, param, f"{self._name}.{name}", self.op == AVERAGE, self.process_set
        )

    def _synchronize_compressed(self) -> None:
        """With a Compressor of the user's own: each gradient through its two functions."""
        params = self._parameters()
        handles: list[tuple[torch.Tensor, int, Any]] = []
        for i, param in enumerate(params):
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            small, context = self.compression.compress(param.grad)
            handle = ops.allreduce_async_(
                small.contiguous(),
                name=f"{self._name}.{self.names.get(param, i)}",
                op=self.op,
                prescale_factor=1 / self.predivide_factor,
                postscale_factor=self.predivide_factor,
                process_set=self.process_set,
            )
            handles.append((param, handle, context))
        for param, handle, context in handles:
            param.grad.copy_(self.compression.decompress(synchronize(handle), context))
