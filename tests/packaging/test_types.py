"""What editors and type checkers know of hvdlite and of every name of Horovod's."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import notebooks
import pytest

ROOT = Path(__file__).resolve().parents[2]
TYPED = sorted((ROOT / "tests" / "packaging" / "typed").glob("*.py"))
LABS = sorted((ROOT / "labs").glob("*/lab.py"))


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=580
    )


def test_the_stubs_are_what_the_tool_would_write():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "stubs.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def stubs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "tools" / "stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_says_what_it_does_by_itself():
    """An editor shows the docstring of the name alone, so it must not only point to another."""
    tool = stubs()
    for binding in tool.PACKAGES:
        for name in tool.exported(binding):
            where, real = tool.origin(binding, name)
            node = tool.bindings(where).get(real)
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue  # a number, a version, another name for a function, a module
            text = ast.get_docstring(node) or ""
            first = text.partition("\n\n")[0]
            assert len(first.split()) > 3, f"{where}.{real}: {text!r}"
            assert not re.match(r"`|Like |As |See ", first), f"{where}.{real}: {first!r}"
            assert "; see `" not in first, f"{where}.{real}: {first!r}"
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, f"{where}.{real} says no type"


@pytest.fixture(scope="module")
def every_name(tmp_path_factory) -> Path:
    """A program that imports every name of Horovod's modules that the alias is tested with."""
    spec = importlib.util.spec_from_file_location("alias", ROOT / "tests/packaging/test_alias.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("names") / "every_name.py"
    names = [(where, name) for where, text in module.NAMES.items() for name in text.split()]
    assert len(names) > 100
    lines = [f"from {where} import {name} as _{i}" for i, (where, name) in enumerate(names)]
    path.write_text("\n".join(["import horovod", *lines, "horovod.run(print, np=2)", ""]))
    return path


@pytest.fixture(scope="module")
def folder(every_name, tmp_path_factory) -> Path:
    """A folder with all programs that must be found right: ours, the course's, the labs'."""
    folder = tmp_path_factory.mktemp("programs")
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__*"))
    for path in (*TYPED, every_name):
        (folder / "typed").mkdir(exist_ok=True)
        shutil.copy(path, folder / "typed")
    for lab in LABS:
        (folder / f"lab_{lab.parent.name}").mkdir()
        assert notebooks.programs(lab, folder / f"lab_{lab.parent.name}")
    return folder


# What pyright says wrongly of programs of Keras and TensorFlow, as their names have no types, or
# none that are right. No program can be written so that it does not.
NOT_OURS = {
    # Callback.model: it reads the property's type off the None that Callback begins with.
    '"stop_training" is not a known attribute of "None"',
    '"save" is not a known attribute of "None"',
    # keras.models.load_model: the type of what it returns is guessed from its lines.
    '"fit" is not a known attribute of "None"',
    'Cannot access attribute "fit" for class "object"',
    'Cannot access attribute "fit" for class "FunctionType"',
    # fit(verbose="auto"): a text, as its default is one.
    'Argument of type "Literal[0]" cannot be assigned to parameter "verbose" of type "str"',
    # tf.Variable(0) and tensorflow.compat.v1, of which the stubs that pyright brings know nothing.
    'Argument of type "Literal[0]" cannot be assigned to parameter "initial_value" of type "Tensor',
    'Import "tensorflow.compat.v1" could not be resolved',
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_finds_right_programs_right(folder):
    """Pyright is the engine of VS Code."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=folder)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py"))) > 50
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    told, seen = [], set()
    for one in errors:
        known = next((text for text in NOT_OURS if one["message"].startswith(text)), None)
        if known and re.search("keras|tensorflow", Path(one["file"]).name):
            seen.add(known)
        else:
            line = one["range"]["start"]["line"] + 1
            told.append(f"{one['file']}:{line}: {one['message']}")
    assert told == [], "\n".join(told)
    assert seen == NOT_OURS, "pyright no longer says it: take it out"


@pytest.mark.slow
@pytest.mark.timeout(600)  # it reads all of PyTorch
def test_mypy_finds_right_programs_right(folder):
    """As `make lint` asks it, and the notebooks as well."""
    settings = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", folder / "mypy_cache"]
    done = run("mypy", *settings, ".", cwd=folder)
    told = f"Success: no issues found in {len(list(folder.rglob('*.py')))} source files"
    assert told in done.stdout, done.stdout + done.stderr
    # A name that is not there, and a function without types, would not have passed.
    bad = "import horovod.torch as hvd\n\nhvd.inti()\n\n\ndef step(x):\n    return x\n"
    (folder / "typed" / "bad.py").write_text(bad)
    done = run("mypy", *settings, "typed/bad.py", cwd=folder)
    (folder / "typed" / "bad.py").unlink()
    assert 'Module has no attribute "inti"' in done.stdout
    assert "[no-untyped-def]" in done.stdout and "Found 2 errors" in done.stdout
