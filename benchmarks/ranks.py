"""What more ranks cost: allreduce, and a training step, on 2 to 16 ranks of this machine.

    python benchmarks/ranks.py [MOST]    # 16 unless told otherwise

- 4 KiB, 16 MiB: one allreduce in the fusion buffer, and one of Open MPI's, in place
- step: small CNN, batch 64 a rank, alone (all ranks compute, none talks) and with hvdlite

Where there are more ranks than cores they share these, so times grow with the number of ranks;
then images/s of all ranks are what to look at.
"""

import json
import os
import subprocess
import sys

from table import Table

COLUMNS = {
    "ranks": "{}",
    "4 KiB": "{:,.0f} us",
    "4 KiB, MPI": "{:,.0f} us",
    "16 MiB": "{:,.0f} us",
    "16 MiB, MPI": "{:,.0f} us",
    "step alone": "{:,.0f} us",
    "step": "{:,.0f} us",
    "images / s of all": "{:,.0f}",
}


def measure() -> None:
    """Each rank's part: print the numbers of a row."""
    import torch
    from allreduce import one_bucket
    from common import COMM, interleaved
    from mpi4py import MPI
    from step import trainer

    import hvdlite.torch as hvd
    from hvdlite import testing

    torch.set_num_threads(1)
    hvd.init()
    row = []
    for nbytes, calls in ((1 << 12, 50), (1 << 24, 1)):
        bucket, tensor = one_bucket(nbytes), torch.zeros(nbytes // 4)
        variants = {
            "buffer": lambda b=bucket: testing.run(b.request("bucket", hvd.Sum)),
            "MPI": lambda t=tensor: COMM.Allreduce(MPI.IN_PLACE, t.numpy()),
        }
        row += [seconds * 1e6 for seconds in interleaved(variants, 15, calls).values()]
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    steps = {kind: trainer(kind, images, labels) for kind in ("alone", "hvdlite")}
    row += [seconds * 1e6 for seconds in interleaved(steps, 30).values()]
    if COMM.rank == 0:
        print("row:", json.dumps([*row, COMM.size * len(images) / row[-1] * 1e6]), flush=True)


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    results = Table("What more ranks cost", f"{os.cpu_count()} cores", COLUMNS, "time (us)")
    for ranks in (2, 4, 8, 16):
        if ranks <= most:
            command = [sys.executable, "-m", "hvdrun", "-np", str(ranks), sys.executable, __file__]
            # More ranks than cores: MPI may not keep one while it waits.
            env = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
            done = subprocess.run([*command, "rank"], env=env, stdout=subprocess.PIPE, text=True)
            done.check_returncode()
            said = done.stdout.partition("row: ")[2].partition("\n")[0]
            results.row(str(ranks), *json.loads(said))


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["rank"] else main()
