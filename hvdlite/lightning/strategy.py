"""How a Trainer of Lightning 2 works with the other ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_only

from hvdlite import calls
from hvdlite.basics import cross_rank, cross_size, init, local_rank, rank, size
from hvdlite.lightning.batch_norm import SharedBatchNorm
from hvdlite.lightning.devices import devices_of_host, share_cores
from hvdlite.lightning.gradients import Gradients
from hvdlite.lightning.metrics import share_metrics
from hvdlite.objects import broadcast_object
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.request import AVERAGE, MAX, MIN, PRODUCT, SUM
from hvdlite.torch.allreduce_ops import allreduce
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.functions import broadcast_parameters
from hvdlite.torch.ops import allgather

if TYPE_CHECKING:  # `pytorch_lightning` has the same
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import ParallelStrategy as _Strategy
else:
    _Strategy = object

_OPERATIONS = {
    "mean": AVERAGE, "avg": AVERAGE, "sum": SUM, "min": MIN, "max": MAX, "product": PRODUCT,
}  # fmt: skip


class HorovodMethods(_Strategy):
    """Trains on the ranks that horovodrun, mpirun or srun has started, one device each.

    The same as `Trainer(strategy="horovod")`. The launcher says how many ranks there are, and the
    Trainer's `devices` and `num_nodes` don't.

    Args:
        compression: `hvd.Compression.fp16` or `.bf16` to send gradients in half the bytes.
        others: those of every strategy of Lightning, such as `checkpoint_io`.
    """

    strategy_name = "horovod"
    is_distributed = True  # so that the Trainer puts in a DistributedSampler

    def __init__(self, *, compression: type[Compressor] = Compression.none, **others: Any):
        init()
        super().__init__(**others)
        self._gradients = Gradients(compression)
        self._batch_norm = SharedBatchNorm()
        self.set_world_ranks()

    # Who am I

    def set_world_ranks(self) -> None:
        """Let Lightning's messages, bars and loggers know the rank; the Trainer calls it, too."""
        rank_zero_only.rank = rank()

    @property
    def global_rank(self) -> int:
        return rank()

    @property
    def local_rank(self) -> int:
        return local_rank()

    @property
    def node_rank(self) -> int:
        return cross_rank()

    @property
    def world_size(self) -> int:
        return size()

    @property
    def num_nodes(self) -> int:
        return cross_size()

    @num_nodes.setter
    def num_nodes(self, number: int) -> None:
        """The launcher knows better."""

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """The device of each rank of this host; None as long as the Trainer has not said any."""
        return devices_of_host(self._parallel_devices) if self._parallel_devices else None

    @parallel_devices.setter
    def parallel_devices(self, parallel_devices: list[torch.device] | None) -> None:
        self._parallel_devices = parallel_devices

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[local_rank()]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": size(), "rank": rank()}

    # From the beginning of fit() or predict() to its end

    def setup_environment(self) -> None:
        super().setup_environment()
        if self.root_device.type == "cpu":
            share_cores()

    def setup(self, trainer: "Trainer") -> None:
        if self._layer_sync is not None and trainer.training:
            self._batch_norm.share(self.model)
        share_metrics(self.lightning_module)
        super().setup(trainer)
        broadcast_parameters([*self.model.named_parameters(), *self.model.named_buffers()], 0)

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def setup_optimizers(self, trainer: "Trainer") -> None:
        super().setup_optimizers(trainer)
        self._gradients.forget()
        names = self.lightning_module.named_parameters()
        self._gradients.names.update((param, name) for name, param in names)

    def teardown(self) -> None:
        self._gradients.forget()
        self._batch_norm.revert()
        super().teardown()

    # A step

    def backward(
        self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """As Lightning's own, with the gradients reduced before `on_after_backward` sees them."""
        precision, module = self.precision_plugin, self.lightning_module
        self.pre_backward(closure_loss)
        loss = precision.pre_backward(closure_loss, module)
        precision.backward(loss, module, optimizer, *args, **kwargs)
        self._gradients.after_backward(self.optimizers)
        loss = precision.post_backward(loss, module)
        self.post_backward(loss)
        return loss

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within this, gradients add up on each rank: the Trainer accumulates batches."""
        with self._gradients.held():
            yield

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """As Lightning's own: runs the closure, then clips, then takes the step."""

        def reduced() -> Any:
            loss = closure()
            self._gradients.before_step(optimizer, self.optimizers)
            if isinstance(optimizer, torch.optim.LBFGS) and loss is not None:
                return self.reduce(loss)  # by which it searches, on all ranks alike
            return loss

        return super().optimizer_step(optimizer, reduced, model, **kwargs)

    # Between the ranks

    def barrier(self, name: str | None = None) -> None:
        calls.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Rank src's object, on every rank."""
        return broadcast_object(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> torch.Tensor:
        """A tensor or number over all ranks; `self.log(..., sync_dist=True)` ends here.

        reduce_op: "mean", "sum", "min", "max" or "product", or torch.distributed's name for it.
        group: None for all ranks, or a hvd.ProcessSet. The mean of integers is a float.
        Raises ValueError for others.
        """
        name = str(getattr(reduce_op, "name", reduce_op or "mean")).lower()
        if name not in _OPERATIONS:
            raise ValueError(f"reduce_op={reduce_op!r}: it can be one of {', '.join(_OPERATIONS)}")
        tensor = torch.as_tensor(tensor, device=self.root_device)
        wide = tensor
        if name in ("mean", "avg") and not (tensor.is_floating_point() or tensor.is_complex()):
            wide = tensor.double()
        result = allreduce(wide, op=_OPERATIONS[name], process_set=_process_set(group))
        return result if wide is tensor else result.to(torch.get_default_dtype())

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """All ranks' tensors of one shape, [size, ...]; of a single rank the tensor as it is."""
        process_set = _process_set(group)
        if process_set.size() == 1:
            return tensor
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            return allgather(tensor.unsqueeze(0), process_set=process_set)


def _process_set(group: Any) -> ProcessSet:
    if isinstance(group, ProcessSet):
        return group
    if group is None or group is torch.distributed.group.WORLD:
        return global_process_set
    raise ValueError(f"group={group!r}: with strategy='horovod' it is a hvd.ProcessSet, or None")
