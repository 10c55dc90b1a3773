"""A training step of Keras 3 beside the same step alone, and a loop beside TensorFlow's own way.

    python benchmarks/keras_step.py

Two workers of one thread each. Small CNN, SGD with momentum.
First `train_on_batch` of Keras 3, alone and with DistributedOptimizer, in turn; batch of 64.
Then images/s of a loop in tf_keras: with hvdlite's tape, and with MultiWorkerMirroredStrategy,
in turn, each in processes of its own, for batches of 64 and of 16 a worker. (Keras 3's `fit` does
not run under that strategy.)
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

from table import Table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
BATCH, STEPS, WORKERS = int((sys.argv[2:] or [64])[0]), 60, 2
TENSORFLOWS = "MultiWorkerMirroredStrategy"


def cnn(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def numbers(seed: int):
    import numpy as np

    generator = np.random.default_rng(seed)
    images = generator.normal(size=(BATCH, 28, 28, 1)).astype("float32")
    return images, generator.integers(0, 10, BATCH)


def one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def keras_step(rounds: int) -> None:
    import keras
    from common import COMM, interleaved, table

    import hvdlite.keras as hvd

    hvd.init()
    images, labels = numbers(COMM.rank)

    def trainer(distributed: bool):
        keras.utils.set_random_seed(0)
        model = cnn(keras)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(hvd.DistributedOptimizer(optimizer) if distributed else optimizer, loss)
        return lambda: model.train_on_batch(images, labels)

    variants = {"alone": trainer(False), "hvdlite": trainer(True)}
    times = interleaved(variants, rounds, warmup=5)
    columns = {"variant": "{}", "step": "{:.2f} ms", "step / alone": "{:.3f}"}
    title = f"Keras {keras.__version__}: train_on_batch, batch {BATCH} a rank"
    results = table(title, columns, "time (ms)")
    for name, seconds in times.items():
        results.row(name, seconds * 1e3, seconds / times["alone"])


def loop(kind: str) -> None:
    """A worker: train in a loop of one's own, and print the images/s of all workers together."""
    import tensorflow as tf
    import tf_keras as keras

    if kind == "hvdlite":
        import hvdlite.tensorflow as hvd

        hvd.init()
        rank, size, strategy = hvd.rank(), hvd.size(), tf.distribute.get_strategy()
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        size = strategy.num_replicas_in_sync
    images, labels = map(tf.constant, numbers(rank))
    with strategy.scope():
        model, optimizer = cnn(keras), keras.optimizers.SGD(0.01, momentum=0.9)
        losses = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=keras.losses.Reduction.NONE
        )

    def gradients_applied():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(labels, model(images, training=True))) / BATCH
            loss = loss if kind == "hvdlite" else loss / size
        if kind == "hvdlite":
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def step():
        strategy.run(gradients_applied)

    for _ in range(5):
        step()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    seconds = time.perf_counter() - start
    if rank == 0:
        print(json.dumps({"images/s": STEPS * BATCH * size / seconds}))


def started(kind: str, batch: int = BATCH) -> str:
    """What the workers of one kind print, which run as processes of their own."""
    command = [sys.executable, __file__, kind, str(batch)]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    if kind != TENSORFLOWS:
        launcher = [sys.executable, "-m", "hvdrun", "-np", str(WORKERS)]
        done = subprocess.run([*launcher, *command], env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{kind} failed:\n{done.stderr}")
        return done.stdout
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(WORKERS)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    workers = []
    for index in range(WORKERS):
        task = {"type": "worker", "index": index}
        env["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        workers.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    return "".join(worker.communicate()[0] for worker in workers)


def beside_tensorflows_own(rounds: int, batch: int) -> None:
    """Both loops in turn, a few times."""
    found: dict[str, list[float]] = {"hvdlite": [], TENSORFLOWS: []}
    for _ in range(rounds):
        for kind, values in found.items():
            said = started(kind, batch)
            values.append(json.loads(said[said.index("{") : said.index("}") + 1])["images/s"])
    medians = {kind: statistics.median(values) for kind, values in found.items()}
    columns = {
        "variant": "{}",
        "median": "{:,.0f}",
        "least": "{:,.0f}",
        "median / theirs": "{:.2f}",
    }
    title = f"tf_keras, a loop of one's own, {WORKERS} workers, batch {batch} each: images/s of all"
    results = Table(title, f"medians of {rounds} runs", columns, "images/s")
    for kind, value in medians.items():
        results.row(kind, value, min(found[kind]), value / medians[TENSORFLOWS])


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("".join(line for line in started("step").splitlines(True)), flush=True)
        for batch in (64, 16):
            beside_tensorflows_own(3, batch)
    else:
        one_thread()
        loop(sys.argv[1]) if sys.argv[1] != "step" else keras_step(rounds=100)
