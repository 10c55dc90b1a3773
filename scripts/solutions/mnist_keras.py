"""Train an image classifier on MNIST with tf.keras, in any number of processes.

    horovodrun -np 2 python scripts/solutions/mnist_keras.py

scripts/mnist_keras.py is the same program for one process.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from hvdlab import data
from hvdlab.epoch_log import EpochLog


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="MNIST in tf.keras",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="images a step, for each process")
    add("--val-batch-size", type=int, default=500, help="images a step in validation")
    add("--base-lr", type=float, default=0.001, help="learning rate of one process")
    add("--warmup-epochs", type=int, default=1, help="epochs in which several processes warm up")
    add("--log-dir", type=Path, help="folder for epochs.jsonl and the checkpoints")
    add("--data-dir", help="folder to look for the data in first")
    add("--limit", type=int, help="use only so many images, for a quick try")
    add("--seed", type=int, default=42, help="seed of weights and shuffling")
    add("--threads", type=int, help="CPU threads a process; its share of the cores where not given")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28)),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Reshape((28, 28, 1)),
            tf.keras.layers.Conv2D(8, 5, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(16, 5, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


class Report(tf.keras.callbacks.Callback):
    """Reports each epoch, with the time of its training alone."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_test_begin(self, logs=None):
        self.seconds = time.perf_counter() - self.start

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        self.log.add(epoch + 1, self.seconds, logs["loss"], logs["val_accuracy"])


def main():
    args = parse_arguments()
    hvd.init()  # Step 1
    tf.keras.utils.set_random_seed(args.seed)

    # Device: step 2, a GPU for each process of this host; otherwise its share of the CPU.
    gpus = [] if args.no_cuda else tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[hvd.local_rank()] if gpus else [], "GPU")
    cores = len(os.sched_getaffinity(0))
    share = min(cores, max(1, (os.cpu_count() or 1) // hvd.local_size()))
    threads = args.threads or share  # Step 11
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    # Data: step 6, each process sees its own part of the images, and as many as the others do.
    mnist = data.load("mnist", data_dir=args.data_dir)
    train_images, train_labels = mnist.train_images[: args.limit], mnist.train_labels[: args.limit]
    test_images, test_labels = mnist.test_images[: args.limit], mnist.test_labels[: args.limit]
    count = len(train_images) // hvd.size() * hvd.size()
    mine = slice(hvd.rank(), count, hvd.size())
    train_images, train_labels = train_images[mine], train_labels[mine]
    mine = slice(hvd.rank(), None, hvd.size())
    test_images, test_labels = test_images[mine], test_labels[mine]

    # Model and optimizer.
    model = create_model()
    rate = args.base_lr * hvd.size()  # Step 3
    optimizer = tf.keras.optimizers.Adam(rate)
    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4
    model.compile(
        optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    # Training.
    facts = {
        "epochs": args.epochs,
        "images": count,
        "processes": hvd.size(),
        "batch_size": args.batch_size,
        "learning_rate": rate,
        "threads": threads,
        "device": "gpu" if gpus else "cpu",
        "is_sample": mnist.is_sample,
    }
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),  # Step 5
        hvd.callbacks.MetricAverageCallback(),  # Step 9
        hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs),  # Step 10
    ]
    if hvd.rank() == 0:  # Step 7: one process prints and writes
        callbacks.append(Report(EpochLog(args.log_dir, **facts)))
        if args.log_dir:
            path = args.log_dir / "checkpoint-{epoch}.keras"
            callbacks.append(tf.keras.callbacks.ModelCheckpoint(str(path)))
    model.fit(
        train_images,
        train_labels,
        batch_size=args.batch_size,
        validation_data=(test_images, test_labels),
        validation_batch_size=args.val_batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,  # Step 7
    )
    return model


if __name__ == "__main__":
    main()
