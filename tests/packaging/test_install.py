"""tools/install.py, as far as it can be tried without installing anything."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "tools" / "install.py"


def install(**variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, INSTALL],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_old_python_can_read_it_and_so_say_what_is_wrong():
    ast.parse(INSTALL.read_text(), feature_version=(3, 7))


def test_a_wrong_choice_of_mpi_is_named():
    done = install(VENV=sys.prefix, HVDLITE_MPI="openmpi")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "HVDLITE_MPI is 'openmpi'; it can be 'wheel' (the default) or 'system'."
    )


def test_a_failing_command_ends_with_a_message_and_no_traceback(tmp_path):
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    done = install(VENV=str(not_a_folder / "venv"))
    assert done.returncode != 0
    assert "Then run make again." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("capability", "backend"), [(0.0, "cpu"), (7.0, "cu126"), (9.0, "cu126"), (12.0, "auto")]
)
def test_both_frameworks_get_the_same_cuda(capability, backend):
    module = importlib.util.spec_from_file_location("install", INSTALL)
    loaded = importlib.util.module_from_spec(module)
    module.loader.exec_module(loaded)
    assert loaded.backend_for(capability) == backend


@pytest.mark.parametrize("target", ["", "help"])
def test_make_alone_installs_nothing_and_lists_the_targets(target):
    done = subprocess.run(
        ["make", *target.split()], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "make PYTHON=" in done.stdout


def test_what_is_installed_is_compiled():
    """Or each rank compiles its framework anew where Python may not keep the result."""
    if not os.path.exists(os.path.join(sys.prefix, "hvdlite-installed.json")):
        pytest.skip("this environment was not made by `make install`")
    for module in ("torch.nn.functional", "tensorflow.python.ops.math_ops", "hypothesis.core"):
        top = importlib.util.find_spec(module.partition(".")[0]).submodule_search_locations[0]
        source = os.path.join(top, *module.split(".")[1:]) + ".py"
        assert os.path.exists(source)
        assert os.path.exists(importlib.util.cache_from_source(source)), source
