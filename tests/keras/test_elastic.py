"""hvd.elastic for Keras 3 and tf_keras: `fit` goes on from the last commit."""

import re
import subprocess
import sys

import mpi


def _fit(fail_at: int) -> dict:
    """Two epochs of four batches; in batch `fail_at` of the first start a collective fails."""
    import horovod.tensorflow.keras as hvd
    import numpy as np
    import tensorflow as tf

    hvd.init()
    keras = tf.keras
    keras.utils.set_random_seed(hvd.rank())  # the ranks start from different weights
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    starts, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    images = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
    labels = images.sum(1, keepdims=True) * (hvd.rank() + 1)

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not resets and len(starts) == 1 and state.epoch * 4 + batch == fail_at:
                hvd.allreduce(np.ones(2 + hvd.rank(), np.float32), name="wrong")

    callbacks = [
        Breaks(),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=100),  # so once an epoch
    ]

    @hvd.elastic.run
    def train(state):
        starts.append(state.epoch)
        state.model.fit(images, labels, batch_size=2, epochs=2 - state.epoch, shuffle=False,
                        callbacks=callbacks, verbose=0)  # fmt: skip

    train(state)
    weights = [np.asarray(w).tobytes() for w in model.get_weights()]
    return {"weights": weights, "starts": starts, "resets": resets, "epoch": state.epoch,
            "batch": state.batch}  # fmt: skip


def test_fit_goes_on_as_if_nothing_had_happened(keras_ranks):
    smooth = keras_ranks.run(_fit, -1)
    assert smooth[0] == smooth[1] and smooth[0]["starts"] == [0] and smooth[0]["epoch"] == 2
    for fail_at in (2, 5):  # the second epoch goes on from the end of the first
        for before, after in zip(smooth, keras_ranks.run(_fit, fail_at), strict=True):
            assert after["starts"] == [0, fail_at // 4] and after["resets"] == [2]
            assert (after["epoch"], after["batch"]) == (2, 0)
            assert after["weights"] == before["weights"]


def _accumulators() -> list:
    """A failure before the first commit: what an optimizer starts with is not always zero."""
    import horovod.tensorflow.keras as hvd
    import numpy as np
    import tensorflow as tf

    hvd.init()
    keras, found = tf.keras, []
    kinds = [keras.optimizers.Adagrad(0.1)]
    if keras.optimizers.SGD.__module__.startswith("tf_keras"):
        kinds.append(keras.optimizers.legacy.SGD(0.1, momentum=0.9))
    for kind in kinds:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.ones((1, 1), np.float32)])
        optimizer = hvd.DistributedOptimizer(kind)
        model.compile(optimizer, "mse")
        state = hvd.elastic.KerasState(model)
        starts = []

        @hvd.elastic.run
        def train(state, starts=starts, model=model):
            starts.append(1)
            model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))
            if len(starts) == 1:
                hvd.allreduce(np.ones(2 + hvd.rank(), np.float32), name="wrong")

        train(state)
        # One step of Adagrad from 0.1, and one of SGD, with a gradient of 2.
        found.append((len(starts), round(float(model.get_weights()[0][0, 0]), 3)))
    return found


def test_an_optimizer_starts_from_its_own_first_values(keras_ranks):
    legacy = [(2, 0.8)] if "TF_USE_LEGACY_KERAS" in keras_ranks._env else []
    for found in keras_ranks.run(_accumulators, timeout=240):
        assert found[0] == (2, round(1 - 0.1 * 2 / 4.1**0.5, 3))
        assert found[1:] == legacy


def _unbuilt() -> str:
    import horovod.keras as hvd
    import keras

    hvd.init()
    try:
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    except ValueError as error:
        return str(error)


def test_a_model_without_variables_is_told(torch_ranks):
    assert all("build the model first" in told for told in torch_ranks.run(_unbuilt))


PROGRAM = """
import os, sys
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
keras = tf.keras
keras.utils.set_random_seed(7)
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
state = hvd.elastic.KerasState(model, batch=0, epoch=0, sizes=[])
images = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
labels = images.sum(1, keepdims=True)

class Dies(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if state.epoch == 1 and batch == 2 and hvd.size() == 2 and hvd.rank() == int(sys.argv[1]):
            os.kill(os.getpid(), 9)

    def on_epoch_end(self, epoch, logs=None):
        state.sizes = state.sizes + [hvd.size()]

callbacks = [Dies(), hvd.elastic.UpdateEpochStateCallback(state),
             hvd.elastic.CommitStateCallback(state, batches_per_commit=100)]

@hvd.elastic.run
def train(state):
    state.model.fit(images, labels, batch_size=2, epochs=4 - state.epoch, shuffle=False,
                    callbacks=callbacks, verbose=0)

train(state)
weights = [np.asarray(w).round(5).tolist() for w in model.get_weights()]
print("ended", state.sizes, int(model.optimizer.iterations), weights, flush=True)
"""


def test_fit_goes_on_in_other_processes(tmp_path):
    """The optimizer's moments have come along, as the weights tell: all data are the same on both
    ranks, so that it must not matter how many they are."""
    (tmp_path / "train.py").write_text(PROGRAM)
    told = []
    # The processes of a training in which one dies start with nothing.
    for dies, python in (("0", [sys.executable]), ("5", mpi.python(mpi.KERAS))):
        words = [sys.executable, "-m", "hvdrun", "-np", "2", "--min-np", "1"]
        words += ["-H", "localhost:1,127.0.0.1:1", *python, str(tmp_path / "train.py")]
        done = subprocess.run(
            [*words, dies], env=mpi.environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        told.append(re.findall(r"ended (\[.*?\]) (\d+) (.*)", done.stdout)[0])
    (sizes, *broken), (whole, *smooth) = told
    assert sizes == "[2, 1, 1, 1]" and whole == "[2, 2, 2, 2]" and broken == smooth
