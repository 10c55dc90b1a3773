"""What a type checker must know of `horovod.tensorflow`; it is checked, and never run."""

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf
from typing_extensions import assert_type

hvd.init()
assert_type(hvd.rank(), int)
assert_type(hvd_keras.size(), int)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), op=hvd.Average)
weight = tf.Variable(tf.zeros(3))
with tf.GradientTape() as tape:
    loss = weight * 2
tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
gradients = tape.gradient(loss, [weight])
mean = float(hvd.allreduce(loss, name="loss", op=hvd.Sum))
both = hvd.grouped_allreduce([loss, loss])[0]
everything = hvd.allgather(loss).numpy()
hvd.broadcast_variables([weight], root_rank=0)
hook = hvd.BroadcastGlobalVariablesHook(0)
callback = hvd_keras.callbacks.MetricAverageCallback()
first: int = hvd.broadcast_object(0, root_rank=0)
