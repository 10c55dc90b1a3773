"""The training scripts and their conversions: those of PyTorch really trained.

Those of Keras and TensorFlow train in test_keras_scripts.py.
"""

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mpi
import numpy as np
import pytest

from hvdlab import data

ROOT = Path(__file__).parents[2]
PLAIN = ROOT / "scripts/fashion_mnist_torch.py"
SOLUTION = ROOT / "scripts/solutions/fashion_mnist_torch.py"
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))

# Runs a script's main() and lets rank 0 print a hash of every rank's weights.
PROBE = """
import hashlib, importlib.util, sys
import horovod.torch as hvd
spec = importlib.util.spec_from_file_location("script", sys.argv.pop(1))
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
weights = script.main().state_dict().values()
digest = hashlib.sha256(b"".join(one.cpu().numpy().tobytes() for one in weights)).hexdigest()
digests = hvd.allgather_object(digest)
if hvd.rank() == 0:
    print("weights", *digests)
"""


@pytest.fixture
def train(tmp_path, full_sets):
    """Train on `np` processes, which have PyTorch already; returns the output and the epochs."""
    python = mpi.python(mpi.TORCH)
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)

    def run(script, *options, np=None, limit=240, **environment):
        log_dir = tmp_path / "logs"
        name = "fashion-mnist" if "fashion" in script.name else "mnist"
        command = [*python, str(script), f"--log-dir={log_dir}", "--no-cuda", *options]
        if np:
            launcher = [sys.executable, "-m", "hvdrun", "-np", str(np)]
            command = [*launcher, *python, str(probe), *command[len(python) :]]
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                "HVDLITE_DATA_DIR": str(full_sets[name].folder),
                **environment,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=limit,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (log_dir / "epochs.jsonl").read_text().splitlines()
        return done.stdout + done.stderr, [json.loads(line) for line in lines]

    return run


def weights(output):
    """The hashes of all ranks' weights."""
    return re.search(r"weights ([0-9a-f ]+)", output).group(1).split()


def learn_alike(train, *options, limit):
    """Train on one and on two ranks; the last epoch of each."""
    # One thread each: two threads that wait for each other take ages on a busy machine.
    options = ["--epochs=2", "--threads=1", *options]
    _, one = train(SOLUTION, *options, np=1, limit=limit)
    output, two = train(SOLUTION, *options, np=2, limit=limit)
    assert not one[-1]["is_sample"] and one[-1]["images"] == two[-1]["images"]
    assert (one[-1]["processes"], two[-1]["processes"]) == (1, 2)
    assert len(weights(output)) == 2 and len(set(weights(output))) == 1
    return one[-1], two[-1]


@pytest.mark.slow
def test_two_ranks_learn_as_well_as_one(train):
    one, two = learn_alike(train, "--limit=2000", "--batch-size=16", limit=240)
    # With other seeds 0.79 to 0.82 and 0.78 to 0.80 came out; ten classes by chance give 0.1.
    assert two["accuracy"] >= 0.7
    assert two["accuracy"] >= one["accuracy"] - 0.08


@pytest.mark.whole
@pytest.mark.timeout(2000)
def test_two_ranks_learn_as_well_as_one_from_all_images(train):
    one, two = learn_alike(train, limit=900)
    assert two["images"] == 60_000 and two["accuracy"] >= 0.88
    assert abs(two["accuracy"] - one["accuracy"]) <= 0.01


def test_ranks_end_equal_and_one_reports(train):
    output, epochs = train(SOLUTION, "--epochs=2", "--limit=640", np=2)
    assert len(set(weights(output))) == 1 and len(weights(output)) == 2
    assert output.count("test accuracy") == 2, "each epoch is printed once, by rank 0"
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert [epoch["is_warmup"] for epoch in epochs] == [True, False]
    for epoch in epochs:
        assert epoch["learning_rate"] == pytest.approx(0.04)
        assert epoch["images_per_second"] == pytest.approx(640 / epoch["seconds"])


@pytest.mark.parametrize("np", [None, 2])
def test_resume_goes_on_after_the_checkpoint(train, np, tmp_path):
    script = SOLUTION if np else PLAIN
    options = ["--limit=320", "--threads=1"]
    train(script, *options, "--epochs=1", np=np)
    # As if it had been killed in the second epoch, between its line and its checkpoint.
    with open(tmp_path / "logs/epochs.jsonl", "a") as log:
        log.write('{"epoch": 2, "loss": 9}\n')
    output, epochs = train(script, *options, "--epochs=2", "--resume", np=np)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert output.count("test accuracy") == 1 and "epoch 2/2" in output
    if np:
        assert len(set(weights(output))) == 1
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["checkpoint.pt", "epochs.jsonl"]


def test_stops_at_the_target(train):
    options = ["--limit=128", "--epochs=5", "--target-accuracy=0.0", "--patience=2", "--threads=1"]
    _, epochs = train(PLAIN, *options)
    assert len(epochs) == 2
    assert epochs[0]["threads"] == 1 and epochs[0]["processes"] == 1


def test_sample_is_said_to_be_one(train, tmp_path):
    output, epochs = train(
        PLAIN, "--epochs=1", "--threads=1",
        HVDLITE_DATA_SOURCES="cache", XDG_CACHE_HOME=str(tmp_path / "empty"),
    )  # fmt: skip
    assert "ONLY A SAMPLE" in output and epochs[0]["is_sample"] and epochs[0]["images"] == 400


@pytest.mark.parametrize("np", [None, 2])
def test_the_short_script(train, np):
    script = ROOT / "scripts" / ("solutions" if np else "") / "mnist_torch.py"
    output, epochs = train(script, "--epochs=1", "--limit=512", np=np)
    assert output.count("test accuracy") == 1
    (epoch,) = epochs
    assert epoch["processes"] == (np or 1) and epoch["images"] == 512 and not epoch["is_sample"]
    assert epoch["learning_rate"] == pytest.approx(0.001 * (np or 1))
    if np:
        assert len(weights(output)) == 2 and len(set(weights(output))) == 1


def test_rank_0_alone_writes_curves_for_tensorboard(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "curves"
    options = ["--epochs=2", "--limit=320", f"--tensorboard={folder}"]
    _, epochs = train(SOLUTION, *options, np=2)
    assert len(list(folder.iterdir())) == 1, "each writer has a file of its own"
    curves = EventAccumulator(str(folder)).Reload()
    for name in ("loss", "accuracy"):
        assert [each.step for each in curves.Scalars(name)] == [1, 2]
        values = [each.value for each in curves.Scalars(name)]
        assert values == pytest.approx([epoch[name] for epoch in epochs], rel=1e-6)


def test_without_tensorboard_a_line_says_what_installs_it():
    code = "import runpy, sys; sys.modules['tensorboard'] = None; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(PLAIN), "--tensorboard=curves"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    told = "argument --tensorboard: TensorBoard is not installed: pip install tensorboard"
    assert done.stderr.splitlines()[-1] == f"fashion_mnist_torch.py: error: {told}"


@pytest.mark.slow
def test_lightning_learns_as_well_as_the_loop_by_hand(train):
    script = ROOT / "scripts/solutions/fashion_mnist_lightning.py"
    options = ["--epochs=2", "--threads=1", "--limit=2000", "--batch-size=16"]
    _, by_hand = train(SOLUTION, *options, np=2)
    output, epochs = train(script, *options, np=2)
    assert output.count("test accuracy") == 2 and len(epochs) == 2
    assert len(weights(output)) == 2 and len(set(weights(output))) == 1
    for name in ("images", "processes", "batch_size", "learning_rate"):
        assert epochs[-1][name] == by_hand[-1][name], name
    assert epochs[-1]["accuracy"] >= max(0.7, by_hand[-1]["accuracy"] - 0.08)


@pytest.mark.slow
def test_lightning_goes_on_after_the_checkpoint(train, tmp_path):
    script = ROOT / "scripts/solutions/fashion_mnist_lightning.py"
    options = ["--limit=320", "--threads=1", "--batch-size=16"]
    train(script, *options, "--epochs=1", np=2)
    output, epochs = train(script, *options, "--epochs=2", "--resume", np=2)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert output.count("test accuracy") == 1 and len(set(weights(output))) == 1
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["checkpoint.ckpt", "epochs.jsonl"]


def lines(path):
    """Its lines without comments and indentation."""
    stripped = [line.split("  #")[0].strip() for line in path.read_text().splitlines()]
    return [line for line in stripped if line and not line.startswith("#")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_and_solution_are_the_same_program(name):
    plain, solution = ROOT / "scripts" / name, ROOT / "scripts/solutions" / name
    takes = [re.findall(r'add\(\s*"(--[a-z-]+)"', path.read_text()) for path in (plain, solution)]
    assert takes[0] == takes[1]
    for option in ("--epochs", "--batch-size", "--val-batch-size", "--base-lr", "--log-dir",
                   "--data-dir", "--limit", "--threads", "--no-cuda"):  # fmt: skip
        assert option in takes[0]
    if name.startswith("fashion"):
        assert {"--wd", "--target-accuracy", "--patience", "--warmup-epochs"} <= set(takes[0])
    assert "horovod" not in plain.read_text() and "hvd." not in plain.read_text()
    changes = [line[0] for line in difflib.ndiff(lines(plain), lines(solution))]
    assert changes.count("-") < 30 and changes.count("+") < 60


@pytest.mark.parametrize("name", SCRIPTS)
def test_solution_names_its_steps(name):
    text = (ROOT / "scripts/solutions" / name).read_text()
    steps = {int(number) for number in re.findall(r"[Ss]tep (\d+)", text)}
    assert steps <= set(range(1, 12))
    missing = set() if name.startswith("fashion") else {8, 10}
    assert steps | missing == set(range(1, 12))


def test_models():
    import torch

    from hvdlab.models import create_model

    images = torch.zeros(2, 1, 28, 28)
    for name, size in (("cnn", 1_199_882), ("wrn-16-10", 17_116_346)):
        model = create_model(name)
        assert sum(one.numel() for one in model.parameters()) == size
        assert model(images).shape == (2, 10)
    with pytest.raises(ValueError, match="there are cnn, wrn-16-10"):
        create_model("vgg")


def test_whole_batches_are_single_images_put_together(full_sets):
    import torch

    from hvdlab.torch_data import ImageDataset

    fashion = data.load("fashion-mnist")
    images = ImageDataset(fashion.test_images, fashion.test_labels)
    batch, labels = images.__getitems__([5, 0, 9_999])
    for place, index in enumerate([5, 0, 9_999]):
        image, label = images[index]
        assert torch.equal(image, batch[place]) and label == labels[place]
        raw = np.asarray(fashion.test_images[index], np.float32)
        assert np.allclose(image.numpy()[0], (raw - 72) / 90)
    assert batch.dtype == torch.float32 and labels.dtype == torch.int64
