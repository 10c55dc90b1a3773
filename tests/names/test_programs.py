"""Programs in the styles of 2016 to 2022 run as they are, on two ranks, and end equal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning_training import LIGHTNING
from mpi import TORCH, environment, launch


# As `hvdlab data --for torchvision` lays them out, of 32 pictures.
def write_idx(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        images, labels = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        sizes = b"".join(size.to_bytes(4, "big") for size in (32, 28, 28))
        (folder / images).write_bytes(b"\0\0\x08\x03" + sizes + bytes(range(256)) * 98)
        (folder / labels).write_bytes(b"\0\0\x08\x01" + sizes[:4] + bytes(range(8)) * 4)


HERE = Path(__file__).parent / "programs"
# As the installed package does it at each start of Python.
RUN = """
    import hvdnames.start
    import json, os, runpy, sys
    import numpy as np

    for name in os.environ["PROGRAMS"].split():
        path = os.path.join(os.environ["HERE"], f"{name}.py")
        before = dict(hvdnames._used)
        hvdnames._used.clear()
        for each in before:  # a module that is gone is found once in a process
            if sys.modules.pop(each, None):
                owner, _, attribute = each.rpartition(".")
                vars(sys.modules[owner]).pop(attribute, None)
        try:
            found = runpy.run_path(path, run_name="__main__")
            total = [repr(float(np.sum(each, dtype="float64"))) for each in found["weights"]]
            print("weights of", name, *total, flush=True)
        except SystemExit:  # tf.app.run: it has told its weights
            pass
        print("names of", name, json.dumps(list(hvdnames._used)), flush=True)
        hvdnames._used.update(before)
    """
EAGER = "keras_2017 keras_2018 keras_2019 keras_2021 tf2_2020 tf2_2021 tf2_2022"
EAGER += " eager_2019 eager_2018"  # the last, since they take `tf` for TensorFlow 1 from there on
TORCH_ALONE = "torch_2019 torch_2021"
LIGHTNING_1 = "lightning_2020 lightning_2021"
GRAPHS = "estimator_2019 graph_2016 graph_2017 graph_2018 estimator_2018"
# What the programs ask for; the line at the end names it.
USED = {
    EAGER: """
        keras.layers.core, keras.utils.np_utils, keras.preprocessing.image.ImageDataGenerator,
        keras.layers.convolutional, keras.layers.recurrent, keras.preprocessing.text,
        layers.CuDNNLSTM, layers.ThresholdedReLU, batch_input_shape=, BatchNormalization(fused=),
        TensorBoard(write_grads=), predict_classes(), predict_proba(),
        tf.ConfigProto, tf.GPUOptions, tf.Session, tf.set_random_seed, tf.logging, tf.app, tf.gfile,
        backend.set_session(), keras.backend.get_value, lr=, decay=, optimizer.lr,
        optimizer.variables(), optimizer.weights, optimizer.get_weights(),
        optimizers.legacy.Adam, optimizers.legacy.SGD, fit_generator(), evaluate_generator(),
        predict_generator(), fit(workers=), fit(use_multiprocessing=),
        compile(experimental_run_tf_function=), compile(sample_weight_mode=),
        compile(experimental_steps_per_execution=),
        apply_gradients(experimental_aggregate_gradients=), ModelCheckpoint(period=),
        save_weights('*.h5'), save_weights() to a checkpoint, load_weights() from a checkpoint,
        save() to a folder, save(save_format=), training on from load_model('*.h5'),
        metric.reset_states(), LossScaleOptimizer(dynamic=False), get_scaled_loss(),
        get_unscaled_gradients(), tf.enable_eager_execution, tf.global_variables_initializer,
        tf.keras.losses.mean_squared_error""",
    GRAPHS: """tf.estimator, dataset.make_one_shot_iterator(),
        tf.layers (and all of TensorFlow 1 from there on), tf.flags""",
    LIGHTNING_1: """Trainer(accelerator='horovod'), Trainer(distributed_backend='horovod'),
        Trainer(gpus=), Trainer(resume_from_checkpoint=), Callback.on_init_start(),
        Callback.on_init_end(), on_epoch_end(), LightningModule.training_epoch_end(),
        LightningModule.validation_epoch_end(), LightningModule.test_epoch_end()""",
}
WARM = {TORCH_ALONE: TORCH, LIGHTNING_1: LIGHTNING}


KINDS = {"eager": EAGER, "graphs": GRAPHS, "torch": TORCH_ALONE, "lightning": LIGHTNING_1}


@pytest.mark.parametrize("programs", KINDS.values(), ids=KINDS)
def test_programs_run_as_they_are(programs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_idx(tmp_path / "data" / "MNIST" / "raw")
    env = {"PROGRAMS": programs, "HERE": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = launch(RUN, 2, env=os.environ | env, modules=WARM.get(programs, ()))
    assert done.returncode == 0, done
    lines = [line for line in done.stdout.splitlines() if line.startswith("weights of")]
    assert len(lines) == 2 * len(programs.split()) and len(set(lines)) == len(lines) // 2, done
    if programs not in USED:
        return
    (told,) = [line for line in done.stderr.splitlines() if "they were supplied" in line]
    missing = [each for each in " ".join(USED[programs].split()).split(", ") if each not in told]
    assert not missing, told


def test_a_model_of_keras_in_a_graph(tmp_path, monkeypatch):
    """The text of the program tells, before TensorFlow is imported: so it is the one that runs."""
    monkeypatch.chdir(tmp_path)
    text = (HERE / "model_in_graph_2018.py").read_text()
    done = launch("import hvdnames.start\n" + text, 2, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert done.returncode == 0, done
    told = [line for line in done.stdout.splitlines() if line.startswith("weights")]
    assert len(told) == 2 and len(set(told)) == 1, done
    assert "a model of Keras in a graph of TensorFlow 1" in done.stderr


def test_the_same_with_a_variable_before_the_first_old_name(tmp_path):
    code = """if 1:
        import hvdnames.start, runpy, sys
        sys.argv.pop(0)
        runpy.run_path(sys.argv[0], run_name="__main__")
        """
    command = [sys.executable, "-c", code, str(HERE / "model_in_graph_2019.py")]
    env = environment(extra={"TF_CPP_MIN_LOG_LEVEL": "3"})
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0 and done.stdout.startswith("weights"), done.stderr


def test_only_such_a_program_gets_graphs_from_the_start(monkeypatch):
    from hvdnames import tensorflow_names

    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    for path in HERE.glob("*.py"):
        monkeypatch.setattr(tensorflow_names, "PATCHES", {})
        tensorflow_names.prepare(path.read_text())
        assert bool(tensorflow_names.PATCHES) == path.stem.startswith("model_in_graph"), path
