"""Allreduce between two hosts with a slow network between them: in two levels, beside a ring.

    python benchmarks/hosts.py    # as root: it makes the hosts, see tools/hosts.py

Two hosts on this machine, 2 ranks each, and network cards of 1 Gbit/s in each direction.

- hierarchical: shared memory inside a host, messages between hosts; what hvdlite chooses here
- buffer: the same for gradients that lie in shared memory already
- ring: one ring of all ranks
- MPI: the MPI library's own allreduce, in place
"""

import os
import subprocess
import sys
from pathlib import Path

MBIT = 1000


def measure() -> None:
    """Each rank's part."""
    import numpy as np
    from common import interleaved, size_name, table
    from mpi4py import MPI

    import hvdlite as hvd
    from hvdlite import testing
    from hvdlite.collectives.ring import RingCollectives

    hvd.init()
    hierarchical = testing.collectives()
    assert hierarchical.name == "hierarchical"
    ring = RingCollectives(hierarchical.group)
    columns = {"bytes": "{}"}
    columns |= dict.fromkeys(["hierarchical", "buffer", "ring", "MPI"], "{:,.1f} ms")
    columns |= dict.fromkeys(["ring / hierarchical", "ring / buffer"], "{:.2f}")
    title = f"Allreduce of float32 between 2 hosts of 2 ranks, {MBIT} Mbit/s"
    results = table(title, columns, "time (ms)")
    for nbytes in (1 << 20, 1 << 24, 1 << 26):
        data = np.ones(nbytes // 4, dtype=np.float32)
        rows = [row.view(np.float32) for row in hierarchical.allocate(nbytes).rows]
        variants = {
            "hierarchical": lambda data=data: hierarchical.allreduce(data, 1, _nothing),
            "buffer": lambda rows=rows: hierarchical.allreduce_rows(rows, 1, _nothing),
            "ring": lambda data=data: ring.allreduce(data, 1, _nothing),
            "MPI": lambda data=data: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, data),
        }
        times = interleaved(variants, rounds=5, warmup=1)
        ratios = (times["ring"] / times[name] for name in ("hierarchical", "buffer"))
        results.row(size_name(nbytes), *(value * 1e3 for value in times.values()), *ratios)


def _nothing(array: object) -> None:
    """Neither average nor scale."""


def main() -> int:
    """Make the hosts and start this program again as their ranks."""
    root = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root))
    from tools.hosts import Hosts

    with Hosts(("a", "b"), mbit=MBIT) as hosts:
        words = ["-np", "4", "-H", "a:2,b:2", sys.executable, __file__, "rank"]
        return subprocess.call(
            [*hosts.enter("a"), sys.executable, "-m", "hvdrun", *words],
            # All ranks share this machine's cores, so MPI may not keep one while it waits.
            env={**os.environ, "PYTHONPATH": str(root), "OMPI_MCA_mpi_yield_when_idle": "1"},
        )


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["rank"] else sys.exit(main())
