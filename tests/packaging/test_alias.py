"""`horovod` is hvdlite under another name, however the program was started."""

import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

# Beside this Python, whether or not the environment is on the PATH.
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
PROGRAM = """
import sys
import horovod.torch as hvd
import hvdlite.torch
assert hvd is hvdlite.torch and sys.modules["horovod.torch"] is hvdlite.torch
assert hvd.__name__ == hvd.__spec__.name == "hvdlite.torch"
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}", flush=True)
hvd.shutdown()
"""


def python(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(tmp_path: Path) -> Path:
    path = tmp_path / "student.py"
    path.write_text(PROGRAM)
    return path


def test_started_as_a_file(tmp_path):
    assert python(str(program(tmp_path))) == "rank 0 of 1\n"


def test_started_as_a_module(tmp_path):
    program(tmp_path)
    assert python("-m", "student", cwd=tmp_path) == "rank 0 of 1\n"


def test_started_by_horovodrun(tmp_path):
    done = subprocess.run(
        [HOROVODRUN, "-np", "2", sys.executable, str(program(tmp_path))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout
    assert "rank 1 of 2" in done.stdout


def test_started_in_a_notebook():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROGRAM)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert [out["text"] for out in notebook.cells[0].outputs] == ["rank 0 of 1\n"]


def test_full_names_after_plain_import():
    code = """
        import horovod
        horovod.torch.init()
        assert horovod.torch.size() == 1
        import hvdlite
        assert horovod.__version__ == hvdlite.__version__
        """
    python("-c", textwrap.dedent(code))


def test_modules_below_a_framework_are_the_same_too():
    code = """
        import horovod.torch.compression
        from horovod.torch.compression import Compression
        import hvdlite.torch.compression
        assert horovod.torch.compression is hvdlite.torch.compression
        assert Compression is hvdlite.torch.Compression
        """
    python("-c", textwrap.dedent(code))


def test_horovod_common():
    code = """
        import pickle
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.process_sets import ProcessSet
        import horovod.common.basics
        import hvdlite.exceptions
        assert HorovodInternalError is hvdlite.exceptions.HorovodInternalError
        assert pickle.loads(pickle.dumps(HorovodInternalError)) is HorovodInternalError
        """
    python("-c", textwrap.dedent(code))


@pytest.mark.parametrize("name", ["mxnet", "spark", "ray", "torch.nothing", "common.nothing"])
def test_what_is_not_served_is_named(name):
    with pytest.raises(ModuleNotFoundError, match=rf"does not serve horovod\.{name}; it serves"):
        __import__(f"horovod.{name}")


def test_unknown_attribute_is_named():
    import horovod

    with pytest.raises(AttributeError, match="'horovod' .* has no attribute 'nothing'"):
        _ = horovod.nothing


@pytest.mark.parametrize("name", ["hvdlite", "horovod", "horovod.common.exceptions"])
def test_import_starts_no_mpi_and_no_framework(name):
    heavy = {"mpi4py.MPI", "torch", "tensorflow", "keras", "cupy"}
    assert python("-c", f"import {name}, sys; print({heavy!r} & set(sys.modules))") == "set()\n"
