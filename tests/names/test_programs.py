"""Programs in the styles of 2016 to 2022 run as they are, on two ranks, and end equal."""

import os
from pathlib import Path

import pytest
from mpi import launch

HERE = Path(__file__).parent / "programs"
# As the installed package does it at each start of Python.
RUN = """
    import hvdnames.start
    import os, runpy, sys
    import numpy as np

    for name in os.environ["PROGRAMS"].split():
        path = os.path.join(os.environ["HERE"], f"{name}.py")
        try:
            found = runpy.run_path(path, run_name="__main__")
        except SystemExit:  # tf.app.run: it has told its weights
            continue
        total = [repr(float(np.sum(each, dtype="float64"))) for each in found["weights"]]
        print("weights of", name, *total, flush=True)
    """
EAGER = "keras_2018 keras_2019 tf2_2020 tf2_2022 eager_2018"
GRAPHS = "graph_2017 graph_2016"
# What the programs ask for; the line at the end names it.
USED = {
    EAGER: """
        keras.layers.core, keras.utils.np_utils, keras.preprocessing.image.ImageDataGenerator,
        tf.ConfigProto, tf.GPUOptions, tf.Session, tf.set_random_seed, tf.logging,
        backend.set_session(), keras.backend.get_value, lr=, decay=, optimizer.lr,
        optimizer.variables(), optimizers.legacy.Adam, fit_generator(), evaluate_generator(),
        predict_generator(), compile(experimental_run_tf_function=),
        compile(sample_weight_mode=), ModelCheckpoint(period=), save_weights('*.h5'),
        save_weights() to a checkpoint, load_weights() from a checkpoint, save() to a folder,
        save(save_format=), training on from load_model('*.h5'), metric.reset_states(),
        LossScaleOptimizer(dynamic=False), get_scaled_loss(), get_unscaled_gradients(),
        tf.enable_eager_execution, tf.keras.losses.mean_squared_error""",
    GRAPHS: "tf.layers (and all of TensorFlow 1 from there on)",
}


@pytest.mark.parametrize("programs", [EAGER, GRAPHS], ids=["eager", "graphs"])
def test_programs_run_as_they_are(programs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = {"PROGRAMS": programs, "HERE": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = launch(RUN, 2, env=os.environ | env)
    assert done.returncode == 0, done
    lines = [line for line in done.stdout.splitlines() if line.startswith("weights of")]
    assert len(lines) == 2 * len(programs.split()) and len(set(lines)) == len(lines) // 2, done
    (told,) = [line for line in done.stderr.splitlines() if "that Keras 3 and" in line]
    missing = [each for each in " ".join(USED[programs].split()).split(", ") if each not in told]
    assert not missing, told
