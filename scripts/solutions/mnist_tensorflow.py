"""Train an image classifier on MNIST with TensorFlow 2 and a loop of its own, in many processes.

    horovodrun -np 2 python scripts/solutions/mnist_tensorflow.py

scripts/mnist_tensorflow.py is the same program for one process.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

from hvdlab import data
from hvdlab.epoch_log import EpochLog


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="MNIST in TensorFlow 2",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="images a step, for each process")
    add("--val-batch-size", type=int, default=500, help="images a step in validation")
    add("--base-lr", type=float, default=0.001, help="learning rate of one process")
    add("--warmup-epochs", type=float, default=1, help="epochs in which several processes warm up")
    add("--target-accuracy", type=float, default=1.0, help="test accuracy at which to stop")
    add("--patience", type=int, default=2, help="epochs that meet the target before stopping")
    add("--log-dir", type=Path, help="folder for epochs.jsonl and the checkpoint")
    add("--resume", action="store_true", help="go on from the checkpoint in --log-dir")
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


def learning_rate(args, progress):
    """The rate at `progress` epochs."""
    # Step 10: N processes average over N times as many images, so a step may be N times
    # as long; but not from the first step on, so it grows to that during the warm-up.
    warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0
    return args.base_lr * (1 + (hvd.size() - 1) * warm)


@tf.function
def train_step(model, optimizer, images, labels):
    """One step of the optimizer; returns the loss before it."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
        loss = tf.reduce_mean(losses)
    tape = hvd.DistributedGradientTape(tape)  # Step 4
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def count_right(model, images, labels):
    return tf.math.count_nonzero(tf.argmax(model(images), axis=1) == labels)


def evaluate(model, test_set, count):
    """The share of test images that the model names correctly, 0 to 1."""
    right = sum(count_right(model, images, labels) for images, labels in test_set)
    return metric_average(int(right) / count)


def metric_average(value):
    """Step 9: the mean over the processes; each of them saw only its own images."""
    return float(hvd.allreduce(tf.constant(value)))


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

    # Data: step 6, each process sees its own part of the images, in 1/N of the steps. With the
    # same seed all of them shuffle alike, so that the parts stay apart.
    mnist = data.load("mnist", data_dir=args.data_dir)
    train_images, train_labels = mnist.train_images[: args.limit], mnist.train_labels[: args.limit]
    test_images, test_labels = mnist.test_images[: args.limit], mnist.test_labels[: args.limit]
    train_set = tf.data.Dataset.from_tensor_slices((train_images, train_labels.astype("int64")))
    train_set = train_set.shuffle(len(train_images), seed=args.seed)
    train_set = train_set.shard(hvd.size(), hvd.rank()).batch(args.batch_size)
    steps = max(1, len(train_images) // (args.batch_size * hvd.size()))
    mine = slice(hvd.rank(), None, hvd.size())
    test_images, test_labels = test_images[mine], test_labels[mine]
    test_set = tf.data.Dataset.from_tensor_slices((test_images, test_labels.astype("int64")))
    test_set = test_set.batch(args.val_batch_size)

    # Model and optimizer.
    model = create_model()
    optimizer = tf.keras.optimizers.Adam(args.base_lr * hvd.size())  # Step 3

    # Resume: step 8, rank 0 finds the epoch to start from and tells the others.
    first_epoch = 0
    epochs_done = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epochs_done)
    folder = args.log_dir / "checkpoint" if args.log_dir else None
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1) if folder else None
    if hvd.rank() == 0 and args.resume and manager and manager.latest_checkpoint:
        optimizer.build(model.trainable_variables)
        checkpoint.restore(manager.latest_checkpoint)
        first_epoch = int(epochs_done)
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    if first_epoch:  # step 5 comes behind the first batch; its gradients are for these weights
        hvd.broadcast_variables(model.variables, root_rank=0)

    # Training.
    facts = {
        "epochs": args.epochs,
        "images": len(train_images),
        "processes": hvd.size(),
        "batch_size": args.batch_size,
        "learning_rate": args.base_lr * hvd.size(),
        "threads": threads,
        "device": "gpu" if gpus else "cpu",
        "is_sample": mnist.is_sample,
    }
    log_dir = args.log_dir if hvd.rank() == 0 else None  # Step 7: one process writes
    log = EpochLog(log_dir, done=first_epoch, **facts)
    met_target = 0
    for epoch in range(first_epoch, args.epochs):
        start = time.perf_counter()
        total = 0.0
        for step, (images, labels) in enumerate(train_set.take(steps)):
            optimizer.learning_rate = learning_rate(args, epoch + step / steps)
            total += train_step(model, optimizer, images, labels)
            if epoch == first_epoch and step == 0:
                # Step 5: all go on with the weights and the optimizer state of rank 0; before
                # the first batch the optimizer has none.
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
        loss = metric_average(float(total) / steps)
        seconds = time.perf_counter() - start
        accuracy = evaluate(model, test_set, len(test_images))
        if hvd.rank() == 0:  # Step 7
            log.add(epoch + 1, seconds, loss, accuracy)
            if manager:
                epochs_done.assign(epoch + 1)
                manager.save()
        met_target = met_target + 1 if accuracy >= args.target_accuracy else 0
        if met_target >= args.patience:
            break
    return model


if __name__ == "__main__":
    main()
