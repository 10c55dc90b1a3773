"""Train an image classifier on Fashion-MNIST with Keras, in any number of processes.

    horovodrun -np 2 python scripts/solutions/fashion_mnist_keras.py --epochs 3

scripts/fashion_mnist_keras.py is the same program for one process.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.keras as hvd
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
    add("--threads", type=int, help="CPU threads a process; its share of the cores where not given")
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
    hvd.init()  # Step 1
    keras.utils.set_random_seed(args.seed)

    # Device: step 2, a GPU for each process of this host; otherwise its share of the CPU.
    gpus = [] if args.no_cuda else tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[hvd.local_rank()] if gpus else [], "GPU")
    cores = len(os.sched_getaffinity(0))
    share = min(cores, max(1, (os.cpu_count() or 1) // hvd.local_size()))
    threads = args.threads or share  # Step 11
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    # Data: step 6, each process sees its own part of the images, and as many as the others do.
    # (Where each one draws at random from all images instead, give it 1/N of the steps, and 3/N
    # of the validation steps, so that few test images are missed.)
    (train_images, train_labels), (test_images, test_labels), is_sample = load_data(args)
    count = len(train_images) // hvd.size() * hvd.size()
    mine = slice(hvd.rank(), count, hvd.size())
    train_images, train_labels = train_images[mine], train_labels[mine]
    mine = slice(hvd.rank(), None, hvd.size())
    test_images, test_labels = test_images[mine], test_labels[mine]

    # Model and optimizer.
    model = create_model(args.model)
    rate = args.base_lr * hvd.size()  # Step 3
    optimizer = keras.optimizers.SGD(rate, momentum=args.momentum, weight_decay=args.wd)
    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    # Resume: step 8, rank 0 finds the epoch to start from and tells the others.
    first_epoch = 0
    checkpoints = sorted(args.log_dir.glob("checkpoint-*.keras")) if args.log_dir else []
    if hvd.rank() == 0 and args.resume and checkpoints:
        model = hvd.load_model(checkpoints[-1])
        first_epoch = int(checkpoints[-1].stem.removeprefix("checkpoint-"))
    elif hvd.rank() == 0:
        for old in checkpoints:
            old.unlink()
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    if first_epoch:  # step 5 comes behind the first batch; its gradients are for these weights
        model.set_weights(hvd.broadcast_object(model.get_weights(), root_rank=0))

    # Training.
    callbacks = [
        # Step 5: all processes go on with the weights and the optimizer state of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),
        # Step 9: the mean over the processes, for the callbacks below.
        hvd.callbacks.MetricAverageCallback(),
        # Step 10: N processes average over N times as many images, so a step may be N times
        # as long; but not from the first step on, so it grows to that during the warm-up.
        hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs),
        hvd.callbacks.LearningRateScheduleCallback(
            rate, lambda epoch: decay(args, epoch), start_epoch=args.warmup_epochs
        ),
        StopAtAccuracy(args.target_accuracy, args.patience),
    ]
    facts = {
        "epochs": args.epochs,
        "images": count,
        "processes": hvd.size(),
        "batch_size": args.batch_size,
        "learning_rate": rate,
        "threads": threads,
        "device": "gpu" if gpus else "cpu",
        "is_sample": is_sample,
    }
    if hvd.rank() == 0:  # Step 7: one process prints and writes
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
