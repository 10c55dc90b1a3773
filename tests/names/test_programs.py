"""Programs in the styles of 2016 to 2023 run as they are, end equal, and use each name twice."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning_training import LIGHTNING
from mpi import TORCH, Outcome, environment, launch
from old_names import PUT_TOGETHER, asked_of_tensorflow, reported, said, supplied


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
                vars(sys.modules.get(owner, sys)).pop(attribute, None)
        try:
            found = runpy.run_path(path, run_name="__main__")
            total = [repr(float(np.sum(each, dtype="float64"))) for each in found["weights"]]
            print("weights of", name, *total, flush=True)
        except SystemExit:  # tf.app.run: it has told its weights
            pass
        print("names of", name, json.dumps(list(hvdnames._used)), flush=True)
        hvdnames._used.update(before)
    """
# By kind: the ranks, what they have imported from the start, and the programs, one after the other.
KINDS = {
    "eager": (2, (), """keras_2017 keras_2018 keras_2019 keras_2021 tf2_2020 tf2_2021 tf2_2022
        tf2_2023 eager_2019 eager_2018 tf2_2019 eager_2020"""),  # at the end with TensorFlow 1
    "keras": (1, (), "backend_2017 backend_2018 keras_2016 pictures_2020 words_2017"),
    "graphs": (2, (), """estimator_2019 graph_2016 graph_2017 graph_2018 estimator_2018
        estimator_2017 graph_2019 graph_2020 words_2016"""),
    "torch": (2, TORCH, "torch_2019 torch_2021"),
    "lightning": (2, LIGHTNING, "lightning_2020 lightning_2021 lightning_2019"),
}  # fmt: skip
OLD = "they were supplied"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Callable[[str], Outcome]:
    """Runs the programs of a kind, once for all tests."""

    @functools.cache
    def of_a_kind(kind: str) -> Outcome:
        ranks, modules, programs = KINDS[kind]
        folder = tmp_path_factory.mktemp(kind)
        write_idx(folder / "data" / "MNIST" / "raw")
        env = {"PROGRAMS": programs, "HERE": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "3"}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            done = launch(RUN, ranks, env=os.environ | env, modules=modules)
        assert done.returncode == 0, done
        return done

    return of_a_kind


def names_by_program(stdout: str) -> dict[str, set[str]]:
    """What each program was supplied with; ranks may differ, as one of them saves."""
    found: dict[str, set[str]] = {}
    for line in stdout.splitlines():
        if line.startswith("names of"):
            program, names = line.removeprefix("names of ").split(" ", 1)
            found.setdefault(program, set()).update(json.loads(names))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_programs_run_as_they_are(run, kind):
    ranks, _, programs = KINDS[kind]
    done = run(kind)
    lines = [line for line in done.stdout.splitlines() if line.startswith("weights of")]
    assert sorted({line.split()[2] for line in lines}) == sorted(programs.split())
    assert len(lines) == ranks * len(programs.split()) and len(set(lines)) == len(lines) // ranks


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_supplied_is_said_once(run, kind):
    """The line is rank 0's, which uses all that the others do."""
    done = run(kind)
    names = set().union(*names_by_program(done.stdout).values())
    told = [line for line in done.stderr.splitlines() if OLD in line]
    assert len(told) == bool(names) and (kind != "torch") == bool(names), done.stderr
    assert not [name for name in names if name not in told[0]]


def test_two_programs_use_each_name(run):
    """A name that is added to hvdnames needs programs that show what it does."""
    assert {each for each in said() if "{" in each} == PUT_TOGETHER.keys()
    uses: dict[str, set[str]] = {name: set() for name in supplied()}
    for kind in KINDS:
        for program, names in names_by_program(run(kind).stdout).items():
            names = reported(names) | asked_of_tensorflow((HERE / f"{program}.py").read_text())
            for name in names & uses.keys():
                uses[name].add(program)
    # Two tests below run a program each that needs a process of its own.
    del uses["a model of Keras in a graph of TensorFlow 1 (TF_USE_LEGACY_KERAS=1)"]
    assert len(uses) > 300
    rare = {name: programs for name, programs in uses.items() if len(programs) < 2}
    assert not rare, rare


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
    assert "a model of Keras in a graph of TensorFlow 1" in done.stderr


def test_only_such_a_program_gets_graphs_from_the_start(monkeypatch):
    from hvdnames import tensorflow_names

    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    for path in HERE.glob("*.py"):
        monkeypatch.setattr(tensorflow_names, "PATCHES", {})
        tensorflow_names.prepare(path.read_text())
        assert bool(tensorflow_names.PATCHES) == path.stem.startswith("model_in_graph"), path
