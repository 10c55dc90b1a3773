"""A program that needs no old name finds Keras and TensorFlow as they are."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

FACTS = """
    import json, re, sys
    import keras, numpy as np, tensorflow as tf
    import hvdlite.tensorflow as hvd
    import inspect

    hvd.init()
    facts = {}

    def fact(name, look):
        try:
            facts[name] = re.sub(" at 0x[0-9a-f]+", "", repr(look()))
        except Exception as error:
            facts[name] = f"{type(error).__name__}: {error}"

    for module in (keras.optimizers, keras.callbacks, keras.models, keras.metrics, keras.saving,
                   keras.layers):
        for name, item in sorted(vars(module).items()):
            if callable(item) and not name.startswith("_"):
                fact(f"{name}()", lambda: inspect.signature(item))
                if isinstance(item, type):
                    fact(f"{name}.__init__()", lambda: inspect.getfullargspec(item.__init__))
                methods = [each for each in dir(item) if not each.startswith("_")]
                for method in methods if isinstance(item, type) else ():
                    call = getattr(item, method)
                    if inspect.isroutine(call):
                        whose = f"{name}.{method}()"
                        fact(whose, lambda: (inspect.signature(call), call.__qualname__))
    keras.utils.set_random_seed(1)
    x = np.random.rand(32, 4).astype("float32")
    y = x.sum(axis=1)
    for make in (keras.optimizers.Adam, keras.optimizers.SGD, keras.optimizers.Nadam):
        model = keras.Sequential([keras.layers.Dense(1)])
        optimizer = make(learning_rate=0.01, weight_decay=0.1)
        model.compile(optimizer, "mse", metrics=["mae"])
        history = model.fit(x, y, epochs=2, batch_size=8, verbose=0)
        fact(f"{make.__name__} history", lambda: history.history)
        fact(f"{make.__name__} weights", lambda: [w.tolist() for w in model.get_weights()])
        fact(f"{make.__name__} config", lambda: keras.optimizers.serialize(optimizer))
        model.save("model.keras")
        again = keras.models.load_model("model.keras")
        values = [each.numpy().tolist() for each in again.optimizer.variables]
        fact(f"{make.__name__} again", lambda: values)
    parts = [keras.layers.Input((8, 8, 1)), keras.layers.Conv2D(2, 3, activation="relu"),
             keras.layers.BatchNormalization(-1, 0.9), keras.layers.Flatten(),
             keras.layers.Dropout(0.5, seed=2), keras.layers.Dense(1, "sigmoid")]
    convolutions = keras.Sequential(parts)
    fact("layers", lambda: [keras.layers.serialize(each) for each in parts[1:]])
    convolutions.compile("sgd", "mse", auto_scale_loss=False)
    history = convolutions.fit(np.random.rand(32, 8, 8, 1), y, batch_size=8, verbose=0)
    fact("of layers", lambda: [history.history, [w.tolist() for w in convolutions.get_weights()]])
    fact("wrong argument of a layer", lambda: keras.layers.Dense(2, no_such=1))
    fact("wrong layer", lambda: keras.layers.no_such)
    fact("wrong module", lambda: __import__("keras.preprocessing.no_such"))
    variables = optimizer.variables
    fact("a list", lambda: [isinstance(variables, list), variables == list(variables)])
    fact("a new list each time", lambda: optimizer.variables is optimizer.variables)
    fact("joined", lambda: type(variables + [1]).__name__)
    fact("flat", lambda: len(tf.nest.flatten({"a": variables})))
    fact("map", lambda: type(keras.tree.map_structure(lambda v: v.shape, [variables])[0][0]))
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model.compile(scaling, "mse")
    model.fit(x, y, epochs=1, verbose=0)
    fact("scaled", lambda: [v.numpy().tolist() for v in scaling.variables])
    fact("wrong argument", lambda: keras.optimizers.SGD(rate=0.1))
    fact("wrong argument of compile", lambda: model.compile("sgd", "mse", no_such=1))
    fact("wrong name", lambda: keras.backend.no_such)
    fact("wrong names", lambda: tf.no_such)
    fact("a session", lambda: tf.executing_eagerly())
    library = compile("hasattr(tf, 'Session'), hasattr(tf.train, 'AdamOptimizer')",
                      "/lib/site-packages/library.py", "eval")
    fact("a library that looks for TensorFlow 1", lambda: eval(library))
    names = ("Session", "ConfigProto", "set_random_seed", "contrib")
    many = names * 10  # Python runs a call that it has seen a few times in another way
    fact("a program that does so, too", lambda: [hasattr(tf, name) for name in many])
    fact("and by a default", lambda: getattr(tf, "placeholder", None))
    fact("still eager", lambda: tf.executing_eagerly())
    print(json.dumps(facts))
    """


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> dict[str, tuple[dict, str]]:
    """The facts and the standard error of the same program with and without old names."""
    started = {}
    for value in ("1", "0"):
        folder = tmp_path_factory.mktemp("facts")
        env = {**os.environ, "HVDLITE_OLD_NAMES": value, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", "import hvdnames.start\n" + textwrap.dedent(FACTS)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started[value] = subprocess.Popen(command, cwd=folder, env=env, **pipes)
    found = {}
    for value, process in started.items():
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        found[value] = json.loads(out.splitlines()[-1]), err
    return found


def test_nothing_of_keras_3_is_changed(facts):
    with_names, without = facts["1"][0], facts["0"][0]
    assert len(with_names) > 5000
    differ = {name: (with_names[name], without[name]) for name in without
              if with_names[name] != without[name]}  # fmt: skip
    assert differ == {}


def test_nothing_is_said(facts):
    assert "HVDLITE_OLD_NAMES" not in facts["1"][1]


def test_a_library_does_not_switch_eager_execution_off(facts):
    assert facts["1"][0]["a library that looks for TensorFlow 1"] == "(False, False)"
    assert facts["1"][0]["still eager"] == "True"


@pytest.mark.parametrize("word, supplied", [("nothing", False), ("horovod", True)])
def test_only_programs_for_horovod_are_supplied(tmp_path, word, supplied):
    """Told by their text, at the first import of Keras: here that is an empty file."""
    (tmp_path / "keras.py").touch()
    code = f"""
        import hvdnames.start, sys
        try:
            import keras  # {word}
        except ImportError:  # an empty Keras can't be supplied with anything
            pass
        print("hvdnames.imports" in sys.modules)
        """
    (tmp_path / "program.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{supplied}\n", done.stderr
