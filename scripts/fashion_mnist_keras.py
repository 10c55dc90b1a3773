"""Train an image classifier on Fashion-MNIST with Keras, in one process.

    python scripts/fashion_mnist_keras.py --epochs 3

scripts/solutions/fashion_mnist_keras.py is the same program converted to many processes.
"""

import argparse
import os
import time
from pathlib import Path

import keras
import tensorflow as tf

from hvdlab import data
from hvdlab.epoch_log import EpochLog, tensorboard_folder
from hvdlab.keras_models import MODELS, create_model


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Fashion-MNIST in Keras",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=5, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="images a step, for each process")
    add("--val-batch-size", type=int, default=500, help="images a step in validation")
    add("--base-lr", type=float, default=0.02, help="learning rate of one process")
    add("--momentum", type=float, default=0.9, help="momentum of SGD")
    add("--wd", type=float, default=0.000005, help="weight decay")
    add("--warmup-epochs", type=int, default=1, help="epochs in which several processes warm up")
    add("--target-accuracy", type=float, default=1.0, help="test accuracy at which to stop")
    add("--patience", type=int, default=2, help="epochs that meet the target before stopping")
    add("--model", choices=MODELS, default="cnn", help="network to train")
    add("--log-dir", type=Path, help="folder for epochs.jsonl and the checkpoints")
    add("--tensorboard", type=tensorboard_folder, help="folder for curves in TensorBoard")
    add("--resume", action="store_true", help="go on from the last checkpoint in --log-dir")
    add("--data-dir", help="folder to look for the data in first")
    add("--limit", type=int, help="use only so many images, for a quick try")
    add("--seed", type=int, default=42, help="seed of weights and shuffling")
    add("--threads", type=int, help="CPU threads; all cores where not given")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def load_data(args):
    """Images and labels of the training and of the test set."""
    fashion = data.load("fashion-mnist", data_dir=args.data_dir)
    train_set = fashion.train_images[: args.limit], fashion.train_labels[: args.limit]
    test_set = fashion.test_images[: args.limit], fashion.test_labels[: args.limit]
    return train_set, test_set, fashion.is_sample


def decay(args, epoch):
    """The learning rate's factor: ten times lower after 60 % and again after 85 % of the epochs."""
    return 0.1 ** sum(epoch >= share * args.epochs for share in (0.6, 0.85))


class StopAtAccuracy(keras.callbacks.Callback):
    """Stops when so many epochs in a row have met the target."""

    def __init__(self, target, patience):
        super().__init__()
        self.target, self.patience = target, patience
        self.met_target = 0

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        self.met_target = self.met_target + 1 if logs["val_accuracy"] >= self.target else 0
        if self.met_target >= self.patience:
            self.model.stop_training = True


class Report(keras.callbacks.Callback):
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


class SaveCheckpoint(keras.callbacks.Callback):
    """Writes everything that a later run needs to go on, the number of epochs in the name."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.folder / "new.keras")
        # Never a half-written checkpoint.
        os.replace(self.folder / "new.keras", self.folder / f"checkpoint-{epoch + 1:03d}.keras")


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)

    # Device: a GPU if there is one; otherwise the CPU.
    gpus = [] if args.no_cuda else tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[:1], "GPU")
    threads = args.threads or len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    # Data: every epoch sees all training images, in a new order.
    (train_images, train_labels), (test_images, test_labels), is_sample = load_data(args)
    count = len(train_images)

    # Model and optimizer.
    model = create_model(args.model)
    rate = args.base_lr
    optimizer = keras.optimizers.SGD(rate, momentum=args.momentum, weight_decay=args.wd)
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    # Resume: find the epoch to start from.
    first_epoch = 0
    checkpoints = sorted(args.log_dir.glob("checkpoint-*.keras")) if args.log_dir else []
    if args.resume and checkpoints:
        model = keras.models.load_model(checkpoints[-1])
        first_epoch = int(checkpoints[-1].stem.removeprefix("checkpoint-"))
    else:
        for old in checkpoints:
            old.unlink()

    # Training.
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: rate * decay(args, epoch)),
        StopAtAccuracy(args.target_accuracy, args.patience),
    ]
    facts = {
        "epochs": args.epochs,
        "images": count,
        "processes": 1,
        "batch_size": args.batch_size,
        "learning_rate": rate,
        "threads": threads,
        "device": "gpu" if gpus else "cpu",
        "is_sample": is_sample,
    }
    if args.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(args.tensorboard))
    callbacks.append(Report(EpochLog(args.log_dir, done=first_epoch, **facts)))
    if args.log_dir:
        callbacks.append(SaveCheckpoint(args.log_dir))
    model.fit(
        train_images,
        train_labels,
        batch_size=args.batch_size,
        validation_data=(test_images, test_labels),
        validation_batch_size=args.val_batch_size,
        initial_epoch=first_epoch,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=0,
    )
    return model


if __name__ == "__main__":
    main()
