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

import pytest

ROOT = Path(__file__).resolve().parents[2]
TYPED = sorted((ROOT / "tests" / "packaging" / "typed").glob("*.py"))
OURS = ("hvdlite", "hvdrun", "hvdlab", "hvdnames", "horovod")
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))


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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_knows_every_name_and_finds_right_programs_right(every_name, tmp_path):
    """Pyright is the engine of VS Code. What it says of the names of Keras is left to them."""
    programs = tmp_path / "programs"
    for path in (*TYPED, *SCRIPTS, every_name):
        copy = programs / path.relative_to(ROOT if path.is_relative_to(ROOT) else path.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], **NOT_OURS}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=programs)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len([*TYPED, *SCRIPTS, every_name])
    told = [
        f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
        and not (of_keras_or_tensorflow(one) and "scripts" in one["file"])
    ]
    assert told == [], "\n".join(told)


# Checks that find something in programs with nothing wrong in them: os.cpu_count() may be None.
NOT_OURS = dict.fromkeys(
    ("reportOptionalSubscript", "reportOptionalMemberAccess", "reportOptionalOperand",
     "reportPossiblyUnboundVariable"), False
)  # fmt: skip


def of_keras_or_tensorflow(diagnostic: dict) -> bool:
    """Whether an error is about a call of theirs, and not about a name of Horovod's."""
    name, message = Path(diagnostic["file"]).name, diagnostic["message"]
    return ("keras" in name or "tensorflow" in name) and not re.search("horovod|hvd", message)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it reads all of PyTorch
def test_mypy_knows_every_name_and_finds_right_programs_right(every_name, tmp_path):
    """Strictly; that the scripts say no types for functions of their own is no error here."""
    config = tmp_path / "mypy.ini"
    silent = "".join(f"[mypy-{name}.*]\nfollow_imports = silent\n" for name in OURS)
    config.write_text(
        f"[mypy]\nmypy_path = {ROOT}\ncache_dir = {tmp_path / 'cache'}\n"
        f"ignore_missing_imports = true\nexplicit_package_bases = true\n{silent}"
    )
    strict = ["--strict", "--allow-untyped-calls", "--config-file", config]
    done = run("mypy", *strict, *TYPED, every_name, *SCRIPTS)
    assert " errors in " in done.stdout, done.stdout + done.stderr  # the scripts say no types
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    ours = [
        line
        for line in errors
        if not line.startswith("scripts/") or re.search("horovod|hvd", line.partition(": ")[2])
    ]
    assert ours == [], "\n".join(ours)
