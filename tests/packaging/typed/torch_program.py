"""What a type checker must know of `horovod.torch`; it is checked, and never run."""

import horovod.torch as hvd
import torch
from typing_extensions import assert_type

hvd.init()
assert_type(hvd.rank(), int)
assert_type(hvd.local_rank() + hvd.size() + hvd.local_size() + hvd.cross_size(), int)
assert_type(hvd.is_initialized(), bool)

model = torch.nn.Linear(2, 3)
plain = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
optimizer = hvd.DistributedOptimizer(
    plain,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=2,
    op=hvd.Average,
)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
first_epoch: int = hvd.broadcast_object(0, root_rank=0, name="epoch")

tensor = torch.ones(3)
assert_type(hvd.allreduce(tensor, name="loss"), torch.Tensor)
assert_type(hvd.allreduce_(tensor, op=hvd.Sum), torch.Tensor)
assert_type(hvd.grouped_allreduce([tensor, tensor]), list[torch.Tensor])
assert_type(hvd.allgather(tensor), torch.Tensor)
assert_type(hvd.grouped_allgather([tensor]), list[torch.Tensor])
assert_type(hvd.broadcast(tensor, 0), torch.Tensor)
assert_type(hvd.broadcast_(tensor, root_rank=0), torch.Tensor)
assert_type(hvd.alltoall(tensor), torch.Tensor)
assert_type(hvd.alltoall(tensor, splits=[1, 2]), tuple[torch.Tensor, torch.Tensor])
assert_type(hvd.reducescatter(tensor), torch.Tensor)
assert_type(hvd.allreduce_async(tensor), int)
assert_type(hvd.poll(hvd.broadcast_async_(tensor, 0)), bool)
assert_type(hvd.join(), int)
hvd.barrier()

norm: torch.nn.Module = hvd.SyncBatchNorm(3)
optimizer.zero_grad()
hvd.allreduce(model(torch.ones(1, 2)).sum()).backward()
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
schedule.step()
even = hvd.add_process_set([0, 2])
if even.included():
    assert_type(even.rank(), int)
    hvd.allreduce(tensor, process_set=even)
try:
    hvd.barrier()
except hvd.HorovodInternalError:
    hvd.shutdown()


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    state.commit()


train(hvd.elastic.TorchState(model, optimizer, epoch=0))
