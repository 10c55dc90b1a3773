"""Train an image classifier on MNIST with tf.keras, in one process.

    python scripts/mnist_keras.py

scripts/solutions/mnist_keras.py is the same program converted to many processes.
"""

import argparse
import os
import time
from pathlib import Path

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
    add("--threads", type=int, help="CPU threads; all cores where not given")
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
    tf.keras.utils.set_random_seed(args.seed)

    # Device: a GPU if there is one; otherwise the CPU.
    gpus = [] if args.no_cuda else tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[:1], "GPU")
    threads = args.threads or len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    # Data: every epoch sees all training images, in a new order.
    mnist = data.load("mnist", data_dir=args.data_dir)
    train_images, train_labels = mnist.train_images[: args.limit], mnist.train_labels[: args.limit]
    test_images, test_labels = mnist.test_images[: args.limit], mnist.test_labels[: args.limit]
    count = len(train_images)

    # Model and optimizer.
    model = create_model()
    rate = args.base_lr
    optimizer = tf.keras.optimizers.Adam(rate)
    model.compile(
        optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    # Training.
    facts = {
        "epochs": args.epochs,
        "images": count,
        "processes": 1,
        "batch_size": args.batch_size,
        "learning_rate": rate,
        "threads": threads,
        "device": "gpu" if gpus else "cpu",
        "is_sample": mnist.is_sample,
    }
    callbacks = []
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
        verbose=2,
    )
    return model


if __name__ == "__main__":
    main()
