"""PyTorch's own launcher: refused, as each of its processes would train alone."""

import subprocess
import sys
from pathlib import Path

from mpi import environment

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
