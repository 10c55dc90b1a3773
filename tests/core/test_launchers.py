"""Launchers other than MPI's: refused, as each of their processes would train alone."""

import subprocess
import sys
from pathlib import Path

import ipyparallel as ipp
import pytest
from mpi import ROOT, environment

PROGRAM = "import hvdlite; hvdlite.init(); print('size', hvdlite.size())"


def test_torchrun_is_refused(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    torchrun = Path(sys.executable).with_name("torchrun")
    done = subprocess.run(
        [torchrun, "--nproc_per_node", "2", tmp_path / "program.py"],
        env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0 and "size" not in done.stdout
    assert "deepspeed) started 2 processes (WORLD_SIZE=2), but without MPI" in done.stderr
    assert "Start the program with horovodrun -np N python PROGRAM" in done.stderr


@pytest.mark.parametrize(
    "variables, refused",
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here"}, True),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "here"}, False),
        ({"WORLD_SIZE": "8", "MASTER_ADDR": "here"}, False),  # of a batch script
    ],
)
def test_variables_of_launchers(variables, refused):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(None, variables), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ("HorovodInternalError" in done.stderr) == refused, done.stderr
    assert ("size 1" in done.stdout) != refused


def test_engines_without_mpi_are_refused():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hvdlite\n"
        "try: hvdlite.init(); told = 'alone'\n"
        "except RuntimeError as error: told = str(error)"
    )
    with ipp.Cluster(n=2, log_level=40) as client:
        client[:].execute(code, block=True)
        first, second = client[:].pull("told", block=True)
    assert first == "alone"  # it may be the only one
    assert "this is engine 1 of ipyparallel" in second and 'engines="mpi"' in second
