"""What a type checker must know of `horovod.keras`; it is checked, and never run."""

import horovod.keras as hvd
import keras
from typing_extensions import assert_type

hvd.init()
assert_type(hvd.rank(), int)
assert_type(hvd.size(), int)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
callbacks: list[keras.callbacks.Callback] = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=1),
    hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.1**epoch, start_epoch=1),
]
model = hvd.load_model("model.keras", custom_objects={})
first: int = hvd.broadcast_object(0, root_rank=0)
mean = hvd.allreduce([1.0, 2.0], name="metrics", op=hvd.Average)
state = hvd.elastic.KerasState(model)
