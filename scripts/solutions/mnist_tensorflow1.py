"""Train an image classifier on MNIST as in TensorFlow 1: a graph and a session, in many processes.

    horovodrun -np 2 python scripts/solutions/mnist_tensorflow1.py

scripts/mnist_tensorflow1.py is the same program for one process.
"""

import argparse
import os
import shutil
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

from hvdlab import data
from hvdlab.epoch_log import EpochLog

tf.disable_eager_execution()


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="MNIST as in TensorFlow 1",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="images a step, for each process")
    add("--val-batch-size", type=int, default=500, help="images a step in validation")
    add("--base-lr", type=float, default=0.001, help="learning rate of one process")
    add("--warmup-epochs", type=float, default=1, help="epochs in which several processes warm up")
    add("--log-dir", type=Path, help="folder for epochs.jsonl and the checkpoints")
    add("--resume", action="store_true", help="go on from the last checkpoint in --log-dir")
    add("--data-dir", help="folder to look for the data in first")
    add("--limit", type=int, help="use only so many images, for a quick try")
    add("--seed", type=int, default=42, help="seed of weights and shuffling")
    add("--threads", type=int, help="CPU threads; OMP_NUM_THREADS, else its share of the cores")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def weights(shape):
    return tf.Variable(tf.truncated_normal(shape, stddev=0.1))


def network(images):
    """LeNet's kind of model: bytes [batch, 28, 28] to 10 logits."""
    images = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28, 28, 1])
    for inputs, outputs in ((1, 8), (8, 16)):
        images = tf.nn.conv2d(images, weights([5, 5, inputs, outputs]), 1, "VALID")
        images = tf.nn.relu(images + tf.Variable(tf.zeros(outputs)))
        images = tf.nn.max_pool2d(images, 2, 2, "VALID")
    features = tf.reshape(images, [-1, 256])
    features = tf.nn.relu(features @ weights([256, 64]) + tf.Variable(tf.zeros(64)))
    return features @ weights([64, 10]) + tf.Variable(tf.zeros(10))


def shuffled(count, seed, epoch):
    """The training images' numbers in the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def run_unseen(session, fetches, feed=None):
    """Run what is no training step: the hooks don't see it."""

    def run(step_context):
        return step_context.session.run(fetches, feed)

    return session.run_step_fn(run)


def main():
    args = parse_arguments()
    hvd.init()  # Step 1
    tf.set_random_seed(args.seed)

    # Device: step 2, a GPU for each process of this host; otherwise its share of the CPU.
    config = tf.ConfigProto(device_count={"GPU": 0} if args.no_cuda else {})
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    cores = len(os.sched_getaffinity(0))
    share = min(cores, max(1, (os.cpu_count() or 1) // hvd.local_size()))
    threads = args.threads or int(os.environ.get("OMP_NUM_THREADS", share))  # Step 11
    config.intra_op_parallelism_threads = threads
    config.inter_op_parallelism_threads = 2

    # Data: step 6, each process sees its own part of the images, in 1/N of the steps.
    mnist = data.load("mnist", data_dir=args.data_dir)
    train_images, train_labels = mnist.train_images[: args.limit], mnist.train_labels[: args.limit]
    test_images, test_labels = mnist.test_images[: args.limit], mnist.test_labels[: args.limit]
    steps = max(1, len(train_images) // (args.batch_size * hvd.size()))
    mine = slice(hvd.rank(), None, hvd.size())
    test_images, test_labels = test_images[mine], test_labels[mine]

    # The graph: model and optimizer.
    images = tf.placeholder(tf.uint8, [None, 28, 28])
    labels = tf.placeholder(tf.int64, [None])
    logits = network(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    right = tf.count_nonzero(tf.equal(tf.argmax(logits, axis=1), labels))
    global_step = tf.train.get_or_create_global_step()
    # Step 10: N processes average over N times as many images, so a step may be N times
    # as long (step 3); but not from the first step on, so it grows to that during the warm-up.
    warm = tf.cast(global_step, tf.float32) / max(1.0, args.warmup_epochs * steps)
    rate = args.base_lr * (1 + (hvd.size() - 1) * tf.minimum(1.0, warm))
    optimizer = tf.train.AdamOptimizer(rate)
    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4
    train_op = optimizer.minimize(loss, global_step=global_step)
    # Step 9: the mean of loss and accuracy over the processes.
    own_metrics = tf.placeholder(tf.float32, [2])
    mean_metrics = hvd.allreduce(own_metrics)

    # Resume: step 8, the session of rank 0 takes the last checkpoint of its folder; the hook of
    # step 5 gives the others what was in it, the number of the step too.
    folder = str(args.log_dir / "checkpoints") if args.log_dir and hvd.rank() == 0 else None
    if folder and not args.resume:
        shutil.rmtree(folder, ignore_errors=True)
    last = tf.train.latest_checkpoint(folder) if folder else None  # ".../model.ckpt-STEP"
    done = int(last.rpartition("-")[2]) // steps if last else 0

    # Training.
    hooks = [
        hvd.BroadcastGlobalVariablesHook(root_rank=0),  # Step 5
        tf.train.StopAtStepHook(last_step=args.epochs * steps),
    ]
    facts = {
        "epochs": args.epochs,
        "images": len(train_images),
        "processes": hvd.size(),
        "batch_size": args.batch_size,
        "learning_rate": args.base_lr * hvd.size(),
        "threads": threads,
        "device": "gpu" if tf.config.list_physical_devices("GPU") and not args.no_cuda else "cpu",
        "is_sample": mnist.is_sample,
    }
    watched = {"step": global_step, "loss": loss}
    log_dir = args.log_dir if hvd.rank() == 0 else None  # Step 7: one process writes
    log = EpochLog(log_dir, done=done, **facts)
    if hvd.rank() == 0:  # Step 7: and prints
        tf.logging.set_verbosity(tf.logging.INFO)
        hooks.append(tf.train.LoggingTensorHook(watched, every_n_iter=100))
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder,
        save_checkpoint_steps=steps,
        log_step_count_steps=None,
        hooks=hooks,
        config=config,
    ) as session:
        while not session.should_stop():
            epoch = int(run_unseen(session, global_step)) // steps
            order = shuffled(len(train_images), args.seed, epoch)
            order = order[hvd.rank() :: hvd.size()]  # Step 6
            total, start = 0.0, time.perf_counter()
            for step in range(steps):
                mine = order[step * args.batch_size : (step + 1) * args.batch_size]
                batch = {images: train_images[mine], labels: train_labels[mine]}
                total += session.run([loss, train_op], batch)[0]
            seconds = time.perf_counter() - start
            count = 0
            for first in range(0, len(test_images), args.val_batch_size):
                mine = slice(first, first + args.val_batch_size)
                batch = {images: test_images[mine], labels: test_labels[mine]}
                count += run_unseen(session, right, batch)
            metrics = total / steps, count / len(test_images)
            metrics = run_unseen(session, mean_metrics, {own_metrics: metrics})  # Step 9
            if hvd.rank() == 0:  # Step 7
                log.add(epoch + 1, seconds, *metrics)


if __name__ == "__main__":
    main()
