"""The Keras and TensorFlow scripts and their conversions, really trained, on a little data."""

import json
import re
from pathlib import Path

import pytest
from mpi import KERAS, Ranks

SCRIPTS = Path(__file__).parents[2] / "scripts"
EAGER = ["fashion_mnist_keras", "mnist_keras", "mnist_tensorflow"]
GRAPH = ["mnist_tensorflow1"]
RESUMABLE = ["fashion_mnist_keras", "mnist_tensorflow", "mnist_tensorflow1"]
LIMIT = 280  # seconds; ends a hang, measures nothing
OPTIONS = ["--limit=512", "--threads=1", "--no-cuda"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pools():
    """Processes that stay, since TensorFlow takes seconds to import."""
    made: dict[tuple[int, bool], Ranks] = {}

    def pool(np: int, name: str) -> Ranks:
        # A process has either eager execution or graphs.
        return made.setdefault((np, name in GRAPH), Ranks(np, modules=KERAS))

    yield pool
    for each in made.values():
        each.stop()


@pytest.fixture
def train(pools, tmp_path, full_sets):
    """Train with a script on one process, or with its solution on `np`."""

    def run(name, *options, np=None):
        path = SCRIPTS / ("solutions" if np else "") / f"{name}.py"
        options = [*OPTIONS, f"--log-dir={tmp_path}", *options]
        results = pools(np or 1, name).run(_train, str(path), options, timeout=LIMIT)
        lines = (tmp_path / "epochs.jsonl").read_text().splitlines()
        return results, [json.loads(line) for line in lines]

    return run


def _train(path: str, options: list) -> dict:
    """Run a script as a program: what it printed, its weights after each epoch, its data."""
    import contextlib
    import hashlib
    import importlib.util
    import io
    import sys
    from unittest.mock import patch

    import tensorflow as tf

    seen: dict = {"weights": [], "images": []}

    def note(arrays):
        seen["weights"].append(hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest())

    class Watch(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            state = [*self.model.variables, *self.model.optimizer.variables]
            note([variable.numpy() for variable in state])

    def fit(self, images, *args, callbacks, **options):
        seen["images"] = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
        return keras_fit(self, images, *args, callbacks=[*callbacks, Watch()], **options)

    class WatchSession(tf.compat.v1.train.SessionRunHook):
        def end(self, session):
            note(session.run(tf.compat.v1.global_variables()))

    def session(*args, hooks, **options):
        return monitored(*args, hooks=[*hooks, WatchSession()], **options)

    def evaluate(model, *args):
        note(model.get_weights())
        return own_evaluate(model, *args)

    keras_fit, v1_train = tf.keras.Model.fit, tf.compat.v1.train
    monitored = v1_train.MonitoredTrainingSession
    spec = importlib.util.spec_from_file_location("script", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    own_evaluate = getattr(script, "evaluate", None)
    output = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(tf.keras.Model, "fit", fit))
        stack.enter_context(patch.object(v1_train, "MonitoredTrainingSession", session))
        if own_evaluate:
            stack.enter_context(patch.object(script, "evaluate", evaluate))
        stack.enter_context(patch.object(sys, "argv", [path, *options]))
        stack.enter_context(contextlib.redirect_stdout(output))
        if "tensorflow1" in path:  # which would find the last training's graph
            stack.enter_context(tf.Graph().as_default())
        script.main()
    seen["output"] = output.getvalue()
    seen["modules"] = sorted({name.split(".")[0] for name in sys.modules})
    return seen


def test_rank_0_alone_writes_curves_for_tensorboard(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    folder = tmp_path / "curves"
    _, epochs = train("fashion_mnist_keras", "--epochs=2", f"--tensorboard={folder}", np=2)
    for part, name in (("train", "loss"), ("validation", "accuracy")):
        assert len(list((folder / part).iterdir())) == 1, "each writer has a file of its own"
        found = EventAccumulator(str(folder / part)).Reload().Tensors(f"epoch_{name}")
        values = [float(make_ndarray(each.tensor_proto)) for each in found]
        assert values == pytest.approx([epoch[name] for epoch in epochs], rel=1e-6)


@pytest.mark.parametrize("name", EAGER + GRAPH)
def test_script_trains_alone(train, name):
    (result,), epochs = train(name, "--epochs=1")
    assert len(result["weights"]) == 1 and "test accuracy" in result["output"]
    assert not {"horovod", "hvdlite"} & set(result["modules"])
    (epoch,) = epochs
    assert epoch["processes"] == 1 and epoch["images"] == 512 and not epoch["is_sample"]
    assert epoch["images_per_second"] == pytest.approx(512 / epoch["seconds"])
    assert epoch["is_warmup"] and epoch["device"] == "cpu" and epoch["threads"] == 1


@pytest.mark.parametrize("name", EAGER + GRAPH)
def test_ranks_stay_equal_and_one_reports(train, name, tmp_path):
    (zero, one), epochs = train(name, "--epochs=2", np=2)
    assert len(zero["weights"]) == (1 if name in GRAPH else 2)
    assert zero["weights"] == one["weights"], "after each epoch, to the last bit"
    assert len(re.findall("^epoch ./2 .*test accuracy", zero["output"], re.MULTILINE)) == 2
    assert one["output"] == ""
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert [epoch["is_warmup"] for epoch in epochs] == [True, False]
    base = 0.02 if "fashion" in name else 0.001
    for epoch in epochs:
        assert epoch["processes"] == 2 and epoch["images"] == 512
        assert epoch["learning_rate"] == pytest.approx(2 * base)
    if zero["images"]:
        assert len(zero["images"]) == len(one["images"]) == 256
        assert not set(zero["images"]) & set(one["images"])


@pytest.mark.parametrize("np", [None, 2])
@pytest.mark.parametrize("name", RESUMABLE)
def test_resume_goes_on_after_the_checkpoint(train, name, np):
    first, _ = train(name, "--epochs=1", np=np)
    then, epochs = train(name, "--epochs=2", "--resume", np=np)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert then[0]["output"].count("test accuracy") == 1 and "epoch 2/2" in then[0]["output"]
    assert first[0]["weights"] != then[0]["weights"]
    assert len({result["weights"][-1] for result in then}) == 1
    # It goes on from what was learnt, and does not start again.
    assert epochs[1]["loss"] < epochs[0]["loss"]
    # Without --resume an old checkpoint is forgotten.
    anew, epochs = train(name, "--epochs=1", np=np)
    assert anew[0]["weights"] == first[0]["weights"] and len(epochs) == 1


def test_models():
    import numpy as np

    from hvdlab.keras_models import create_model

    for name, size in (("cnn", 1_199_882), ("wrn-16-10", 17_116_346)):  # as in PyTorch
        model = create_model(name)
        assert sum(int(np.prod(each.shape)) for each in model.trainable_variables) == size
        assert model(np.zeros((2, 28, 28), np.uint8)).shape == (2, 10)
    with pytest.raises(ValueError, match="there are cnn, wrn-16-10"):
        create_model("vgg")
