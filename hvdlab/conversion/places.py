"""Where in each script the conversion steps have their places, named by the lines there.

The numbers are those of the course: 1 init, 2 device, 3 learning rate, 4 optimizer, 5 the same
start, 6 data, 7 output, 8 resume, 9 metrics, 10 warm-up, 11 threads.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """The lines from the one that begins with `first` to the one that begins with `last`.

    If it `is_empty`, it lies before that first line.
    """

    first: str
    last: str = ""
    is_empty: bool = False


def _lines(first: str, last: str = "") -> Place:
    return Place(first, last or first)


def _before(first: str) -> Place:
    return Place(first, is_empty=True)


PLACES: dict[str, dict[str, Place]] = {
    "fashion_mnist_torch.py": {
        "1": _lines("import torch"),
        "2": _lines("use_cuda =", "device ="),
        "3": _lines("rate = args.base_lr"),
        "4": _before("# Resume:"),
        "5": _before("# Training."),
        "6": _lines("train_sampler =", "test_loader ="),
        "6-epochs": _before("start = time.perf_counter()"),
        "7": _lines("report(args, record)", "save_checkpoint(checkpoint"),
        "8": _lines("if args.resume and", "keep_epochs(args.log_dir"),
        "9": _before("record = {"),
        "10": _before("for share in"),
        "11": _lines("if args.threads:", "torch.set_num_threads("),
    },
    "fashion_mnist_keras.py": {
        "1": _lines("import keras"),
        "2": _lines("gpus =", "tf.config.set_visible_devices("),
        "3": _lines("rate = args.base_lr"),
        "4": _before("model.compile("),
        "5": _before("facts = {"),
        "6": _lines("count = len(train_images)"),
        "7": _lines("callbacks.append(Report(", "callbacks.append(SaveCheckpoint("),
        "8": _lines("if args.resume and", "old.unlink()"),
        "9": _before("facts = {"),
        "10": _lines("callbacks = [", "]"),
        "11": _lines("threads = args.threads"),
    },
    "mnist_tensorflow.py": {
        "1": _lines("import tensorflow as tf"),
        "2": _lines("gpus =", "tf.config.set_visible_devices("),
        "3": _lines("return args.base_lr"),
        "4": _before("gradients = tape.gradient("),
        "5": _lines("total += train_step("),
        "6": _lines("train_set = train_set.batch(", "steps ="),
        "7": _lines("log.add(", "manager.save()"),
        "7-log": _lines("log = EpochLog("),
        "8": _lines("if args.resume and manager", "first_epoch = int(epochs_done)"),
        "9": _lines("accuracy = evaluate("),
        "11": _lines("threads = args.threads"),
    },
    "mnist_tensorflow1.py": {
        "1": _lines("import tensorflow.compat.v1 as tf"),
        "2": _before("config.gpu_options.allow_growth"),
        "4": _lines("optimizer = tf.train.AdamOptimizer("),
        "5": _before("facts = {"),
        "6": _lines("steps ="),
        "6-order": _lines("order = shuffled("),
        "7": _lines("folder = str("),
        "7-log": _lines("log = EpochLog(", "hooks.append(tf.train.LoggingTensorHook("),
        "7-report": _lines("log.add("),
    },
    "mnist_torch.py": {},  # converted by hand, in an editor
}
