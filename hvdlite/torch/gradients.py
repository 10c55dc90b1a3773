"""What happens to the gradients of an optimizer between backward() and step()."""

import operator
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from hvdlite.compression import NoneCompressor, compress, decompress
from hvdlite.engine.engine import Engine
from hvdlite.exceptions import HorovodInternalError
from hvdlite.gradients.options import GradientOptions
from hvdlite.gradients.reducer import Bucket, Gradient, GradientReducer, running_engine
from hvdlite.request import AVERAGE
from hvdlite.torch.buckets import TensorBucket
from hvdlite.torch.gpu_buckets import make_buckets, wire_dtype
from hvdlite.torch.opaque import opaque
from hvdlite.torch.sparse import gather_sparse
from hvdlite.torch.tensors import current_stream, numpy_dtype
from hvdlite.torch.uses import Uses


class TensorReducer(GradientReducer):
    """A GradientReducer, which knows arrays only, for the gradients of tensors."""

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
        gradients, contexts = compress(gradients, self.options.compressor)
        forms = [(each.shape, each.dtype, each.device) for each in gradients]
        if not self.is_current or forms != self._forms:
            self._forms = forms
            # Tensors like these, without their memory.
            self.lay_out_for([each.new_empty(()).expand(each.shape) for each in gradients], names)
        return decompress(self.reduce(gradients), contexts, self.options.compressor)


class GradientSync:
    """The gradients of one DistributedOptimizer.

    A hook on each parameter counts the backward passes and, after the last one, copies the
    gradient into its bucket while it is still in the cache. `synchronize` brings in what is
    missing and reduces the buckets.

    A parameter has the hook of one optimizer, the last one that was made for it or that has
    reduced its gradient. So optimizers of before, which may still be alive, don't count along.
    """

    _owners: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # whose hook a parameter has

    def __init__(
        self,
        param_groups: list[dict[str, Any]],
        names: dict[torch.Tensor, str],
        options: GradientOptions,
    ):
        self.param_groups, self.names, self.options = param_groups, names, options
        self.backward_passes_per_step = options.backward_passes_per_step
        self.active = options.active
        self.reducer = TensorReducer(options)
        self._bucket_of: dict[int, tuple[TensorBucket, int]] = {}  # by id() of a parameter:
        self._passes: dict[int, int] = {}  # a tensor's own hash takes longer
        self._versions: dict[int, int] = {}  # of gradients when they were complete
        self._hooks: dict[int, tuple[torch.Tensor, Any]] = {}
        self._uses = Uses()
        self._counted_by: Engine | None = None  # the engine that ran at the first pass
        self._lost_hooks = False
        self._warned: set[str] = set()
        weakref.finalize(self, _remove, self._hooks).atexit = False
        if self.active:
            self._add_hooks()

    # Counting

    def _parameters(self) -> list[torch.Tensor]:
        return [
            param for group in self.param_groups for param in group["params"] if param.requires_grad
        ]

    def _add_hooks(self) -> None:
        this = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            sync = this()
            if sync is not None and sync._count(param):
                sync._complete(param)

        opaque(hook)
        for param in self._parameters():
            if id(param) not in self._hooks:
                owner = self._owners.get(param, lambda: None)()
                if owner is not None:
                    owner._lose(param)
                self._owners[param] = this
                self._hooks[id(param)] = param, param.register_post_accumulate_grad_hook(hook)

    def _lose(self, param: torch.Tensor) -> None:
        """Another optimizer counts the gradients of this parameter from now on."""
        _, hook = self._hooks.pop(id(param), (None, None))
        if hook is None:
            return  # it was frozen meanwhile
        hook.remove()
        self._passes.pop(id(param), None)
        self._lost_hooks = True

    def _count(self, param: torch.Tensor) -> bool:
        """Count a backward pass of a parameter; whether it is the last one before the step."""
        if not self._passes:
            self._uses.begin()
            self._counted_by = running_engine()
        key = id(param)
        passes = self._passes.get(key, 0) + 1
        if passes > self.backward_passes_per_step:
            if self._counts():
                name = self.names.get(param, "a parameter")
                raise AssertionError(self._uses.too_many(name, self.backward_passes_per_step))
            passes = 1
        self._passes[key] = passes
        return passes == self.backward_passes_per_step

    def _complete(self, param: torch.Tensor) -> None:
        """A gradient has what all passes have added to it: put it into its bucket."""
        bucket, k = self._bucket_of.get(id(param), (None, 0))
        if bucket is not None and self.reducer.is_current and not param.grad.is_sparse:
            if bucket.is_early:
                passes = self.backward_passes_per_step
                if all(self._passes.get(id(other)) == passes for other in bucket.tensors):
                    grads = [other.grad for other in bucket.tensors]
                    bucket.fill(grads, self.reducer.sparse_presence)
                    self.reducer.start(bucket)
            elif bucket.puts_at_once and bucket.holds(k):  # a mere copy could become outdated
                param.grad = bucket.put(k, param.grad)
        self._versions[id(param)] = param.grad._version
        self.reducer.progress()

    def _counts(self) -> bool:
        """Whether what was counted is still of use; not so after an interrupt, or a new init()."""
        running = running_engine()
        if running is not None and running is self._counted_by and running.broken is None:
            return True
        self._clear()
        return False

    def _clear(self) -> None:
        self._passes.clear()
        self._versions.clear()

    def check_nothing_is_lost(self) -> None:
        """Raise AssertionError if there are gradients that await `synchronize`."""
        waiting = any(n >= self.backward_passes_per_step for n in self._passes.values())
        if waiting and self._counts():
            raise AssertionError(self._uses.lost())

    def counted(self) -> bool:
        """Whether there was a backward pass since the last `synchronize`."""
        return bool(self._passes)

    def forget(self) -> None:
        """Forget the backward passes counted so far, and what they have begun to reduce."""
        self._clear()
        if self.reducer.is_current:
            with suppress(HorovodInternalError):
                self.reducer.wait()

    # Reducing

    def synchronize(self, param_groups: list[dict[str, Any]]) -> None:
        """Reduce all gradients over the ranks; every rank of the set must call it."""
        self.param_groups = param_groups  # load_state_dict makes new ones
        if self.active:
            self._warn_of_early_step()
            self._warn_of_changes()
            if self._lost_hooks:
                self._add_hooks()
                self._lost_hooks = False
            self._reduce()
            self._uses.reduced()
        self._clear()

    def _reduce(self) -> None:
        params = self._parameters()
        if self.options.compressor is not NoneCompressor:
            self._reduce_compressed(params)
            return
        known = self.reducer.tensors
        same = len(params) == len(known) and all(map(operator.is_, params, known))
        if not same or not self.reducer.is_current:
            self._lay_out(params)
        became_sparse = False
        for i, grad in enumerate(self.reducer.reduce([param.grad for param in params])):
            if i in self.reducer.sparse:
                self._reduce_sparse(params[i])
            else:
                params[i].grad = grad
                became_sparse |= grad is not None and grad.is_sparse
        if became_sparse and not self.options.sparse_as_dense:
            self.reducer.tensors = []  # on all ranks: the next step lays out anew

    def _lay_out(self, params: list[torch.Tensor]) -> None:
        """Make the buckets anew: the parameters or the ranks are not those of last time."""
        present = set(map(id, params))
        for key in [key for key in self._hooks if key not in present]:
            self._hooks.pop(key)[1].remove()
        self._add_hooks()  # for parameters that were frozen or not there before
        grads = [param.grad for param in params]
        sparse = [i for i, grad in enumerate(grads) if grad is not None and grad.is_sparse]
        self.reducer.lay_out_for(params, self._titles(params), sparse)
        self._bucket_of = {
            id(param): (bucket, k)
            for bucket in self.reducer.buckets
            for k, param in enumerate(bucket.tensors)
        }

    def _titles(self, params: list[torch.Tensor]) -> list[str]:
        return [self.names.get(param, f"noname.{i}") for i, param in enumerate(params)]

    def _reduce_sparse(self, param: torch.Tensor) -> None:
        name = f"{self.reducer.name}.{self.names.get(param, 'noname')}"
        average = self.options.op == AVERAGE
        param.grad = gather_sparse(param.grad, param, name, average, self.options.process_set)

    def _reduce_compressed(self, params: list[torch.Tensor]) -> None:
        """With a Compressor of the user's own each gradient passes through its two functions."""
        self._add_hooks()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        reduced = self.reducer.reduce_list(grads, self._titles(params))
        for param, grad, each in zip(params, grads, reduced, strict=True):
            param.grad = grad.copy_(each)

    # Advice

    def _warn_of_early_step(self) -> None:
        done = max(self._passes.values(), default=0)
        if 0 < done < self.backward_passes_per_step:
            self._warn_once(
                "early",
                f"step() or synchronize() after {done} of {self.backward_passes_per_step} backward "
                "passes: each call reduces the gradients. To save time, call it once in "
                "backward_passes_per_step passes",
            )

    def _warn_of_changes(self) -> None:
        """Tell of gradients that were clipped, say, although they are not reduced yet."""
        for param, _ in self._hooks.values():
            version = self._versions.get(id(param))
            if version is not None and param.grad is not None and param.grad._version != version:
                self._warn_once(
                    "changed",
                    f"the gradient of {self.names.get(param, 'a parameter')} was written to "
                    "between backward() and step(), when it was this rank's own and not yet that "
                    "of all ranks. To clip or change the reduced gradients, write "
                    "`optimizer.synchronize()`, then change them, then `with "
                    "optimizer.skip_synchronize(): optimizer.step()`. If its values are as before, "
                    "or each rank is meant to change its own, ignore this",
                )

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=5)


def _remove(hooks: dict[int, tuple[torch.Tensor, Any]]) -> None:
    for _, hook in hooks.values():
        hook.remove()
