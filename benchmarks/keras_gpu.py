"""A step of Keras 3 on TensorFlow, on GPUs: alone, under MirroredStrategy, and with hvdlite.

    python benchmarks/keras_gpu.py [MODEL ...]

- alone: one process on one GPU
- mirrored: TensorFlow's own way, one process with all GPUs
- hvdlite: a process for each GPU

Then `hvd.allreduce` of 64 MiB in a tf.function, beside NCCL called through CuPy.

`fit` leaves it to Keras whether XLA compiles the step, as is its default; the loop has a tape in a
tf.function without XLA. SGD with momentum; medians over rounds. Each way runs in processes of its
own, one way after the other.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from table import Table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROUNDS = 5
LARGE = "allreduce of 64 MiB"
WAYS = ("alone", "mirrored", "hvdlite")


def small_cnn(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def resnet(keras):
    return keras.applications.ResNet50(weights=None, classifier_activation=None)


def wide_resnet(keras):
    """Wide ResNet 16-10 for images of 28 x 28 (Zagoruyko and Komodakis, 2016)."""
    layers = keras.layers

    def conv(wide, size=3, stride=1):
        return layers.Conv2D(wide, size, stride, padding="same", use_bias=False)

    def norm(x):
        return layers.Activation("relu")(layers.BatchNormalization()(x))

    inputs = keras.Input((28, 28, 1))
    x, narrow = conv(16)(inputs), 16
    for width, first in ((160, 1), (320, 2), (640, 2)):
        for stride in (first, 1):
            y = norm(x)
            short = conv(width, 1, stride)(y) if narrow != width else x
            x = layers.Add()([conv(width)(norm(conv(width, 3, stride)(y))), short])
            narrow = width
    x = layers.GlobalAveragePooling2D()(norm(x))
    return keras.Model(inputs, layers.Dense(10)(x))


# Model, shape of a batch, classes, steps a round.
MODELS = {
    "small CNN, batch 256": (small_cnn, (256, 28, 28, 1), 10, 100),
    "ResNet-50, batch 64": (resnet, (64, 224, 224, 3), 1000, 20),
    "Wide ResNet 16-10, batch 128": (wide_resnet, (128, 28, 28, 1), 10, 20),
}


def worker(way: str, wanted: list[str]) -> None:
    """Measure one way, and print the milliseconds of a step as JSON."""
    import keras
    import numpy as np
    import tensorflow as tf

    gpus, rank, replicas = tf.config.list_physical_devices("GPU"), 0, 1
    if way == "hvdlite":
        import hvdlite.tensorflow.keras as hvd

        hvd.init()
        rank = hvd.local_rank()
    for each in gpus:
        tf.config.experimental.set_memory_growth(each, True)
    if way == "mirrored":
        strategy, replicas = tf.distribute.MirroredStrategy(), len(gpus)
    else:
        tf.config.set_visible_devices(gpus[rank], "GPU")
        strategy = tf.distribute.get_strategy()
    for name, (build, shape, classes, steps) in MODELS.items():
        if wanted and not any(each in name for each in wanted):
            continue
        images = np.random.rand(shape[0] * replicas, *shape[1:]).astype("float32")
        labels = np.random.randint(0, classes, len(images))
        with strategy.scope():
            model, optimizer = build(keras), keras.optimizers.SGD(0.01, momentum=0.9)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            if way == "hvdlite":
                optimizer = hvd.DistributedOptimizer(optimizer)
            model.compile(optimizer, loss)
        found = {"fit": fit(keras, tf, model, images, labels, steps)}
        if way != "mirrored":
            found["loop"] = loop(keras, tf, build(keras), loss, images, labels, steps, way)
        if rank == 0:
            print(json.dumps({"model": name, **found}), flush=True)
    if way == "hvdlite":
        ours, bare = large_allreduce(tf, hvd)
        if rank == 0:
            print(json.dumps({"model": LARGE, "hvdlite": ours, "nccl": bare}), flush=True)


def large_allreduce(tf, hvd) -> tuple[float, float]:
    """Milliseconds of one call among twenty, in a tf.function and by NCCL alone."""
    import cupy
    from cupy.cuda import nccl
    from mpi4py import MPI

    comm, count = MPI.COMM_WORLD, 1 << 24
    cupy.cuda.Device(hvd.local_rank()).use()
    communicator = nccl.NcclCommunicator(hvd.size(), comm.bcast(nccl.get_unique_id()), hvd.rank())
    array, stream = cupy.zeros(count, "float32"), cupy.cuda.Stream(non_blocking=True)
    where = array.data.ptr, array.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
    tensor = tf.zeros(count)
    reduce = tf.function(lambda value: hvd.allreduce(value, op=hvd.Sum))
    results = []

    def in_function() -> None:
        results[:] = [reduce(tensor)]

    times: dict[str, list[float]] = {"hvdlite": [], "nccl": []}
    ways = {"hvdlite": (in_function, lambda: float(results[0][0]))}
    ways["nccl"] = (lambda: communicator.allReduce(*where), stream.synchronize)
    for _ in range(ROUNDS + 1):
        for name, (call, finish) in ways.items():
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(20):
                call()
            finish()
            times[name].append((time.perf_counter() - began) / 20 * 1e3)
    ours, bare = (statistics.median(each[1:]) for each in times.values())
    return ours, bare


def fit(keras, tf, model, images, labels, steps: int) -> float:
    data = tf.data.Dataset.from_tensors((tf.constant(images), tf.constant(labels)))
    times = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            times.append((time.perf_counter() - self.began) / steps)

    data = data.repeat().prefetch(4)
    model.fit(data, steps_per_epoch=steps, epochs=ROUNDS + 2, verbose=0, callbacks=[Clock()])
    return statistics.median(times[2:]) * 1e3


def loop(keras, tf, model, loss, images, labels, steps: int, way: str) -> float:
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    images, labels = tf.constant(images), tf.constant(labels)

    @tf.function(jit_compile=False)
    def step():
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        if way == "hvdlite":
            import hvdlite.tensorflow

            tape = hvdlite.tensorflow.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        for _ in range(steps):
            value = step()
        float(value)
        times.append((time.perf_counter() - began) / steps)
    return statistics.median(times[1:]) * 1e3


def main(wanted: list[str]) -> None:
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    count = len(listing.stdout.splitlines())
    told: dict[str, dict] = {way: {} for way in WAYS}
    for way in WAYS:
        launcher = ["-m", "hvdrun", "-np", str(count)] if way == "hvdlite" else []
        inner = [sys.executable] if launcher else []
        command = [sys.executable, *launcher, *inner, __file__, f"--{way}", *wanted]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            if "{" in line:  # behind the rank's tag
                facts = json.loads(line[line.index("{") :])
                told[way][facts.pop("model")] = facts
    columns = {"model": "{}"} | dict.fromkeys(["alone", "mirrored", "hvdlite"], "{:.2f} ms")
    columns |= dict.fromkeys(["alone / hvdlite", "mirrored / hvdlite"], "{:.2f}")
    for kind in ("fit", "loop"):
        title = f"Keras 3 on TensorFlow, {kind}: one step, {count} GPUs"
        results = Table(title, f"medians of {ROUNDS} rounds", columns, "time (ms)")
        for name in told["alone"]:
            alone, mirrored, ours = (told[way][name].get(kind) for way in WAYS)
            ratio = mirrored / ours if mirrored else None
            results.row(name, alone, mirrored, ours, alone / ours, ratio)
    columns = {
        "call": "{}",
        "hvdlite": "{:.3f} ms",
        "NCCL": "{:.3f} ms",
        "NCCL / hvdlite": "{:.2f}",
    }
    results = Table("In a tf.function", f"medians of {ROUNDS} rounds", columns, "time (ms)")
    ours, bare = told["hvdlite"][LARGE]["hvdlite"], told["hvdlite"][LARGE]["nccl"]
    results.row(LARGE, ours, bare, bare / ours)


if __name__ == "__main__":
    ways = [f"--{way}" for way in WAYS]
    if sys.argv[1:] and sys.argv[1] in ways:
        worker(sys.argv[1][2:], sys.argv[2:])
    else:
        main(sys.argv[1:])
