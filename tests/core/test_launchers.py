"""Launchers other than MPI's, told by their variables: each process would train alone."""

import subprocess
import sys

import pytest
from mpi import environment

PROGRAM = "import hvdlite; hvdlite.init(); print('size', hvdlite.size())"


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
