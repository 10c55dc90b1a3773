"""How long until the first collective, beside MPI's launcher with torch alone.

    python benchmarks/launch.py

- torch: `mpirun -n 2 python -c "import torch"`
- hvdlite: `horovodrun -np 2` of a program that imports hvdlite.torch and calls `init()`
- first allreduce: the same, and one allreduce

Seconds from the command to its end, in turn, medians.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time

from table import Table

ROUNDS = 7
INIT = "import hvdlite.torch as hvd; hvd.init()"
PROGRAMS = {
    "torch": ["import torch"],
    "hvdlite": [INIT],
    "first allreduce": [INIT, "import torch", "hvd.allreduce(torch.ones(1))"],
}


def command(name: str) -> list[str]:
    program = [sys.executable, "-c", "; ".join(PROGRAMS[name])]
    if name == "torch":
        beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
        mpirun = beside if os.path.exists(beside) else shutil.which("mpirun")
        return [mpirun, "-n", "2", "--bind-to", "none", *program]
    return [sys.executable, "-m", "hvdrun", "-np", "2", *program]


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(ROUNDS + 1):
        for name, found in times.items():
            start = time.perf_counter()
            subprocess.run(command(name), check=True, capture_output=True)
            if number:  # the first round warms the disk's cache
                found.append(time.perf_counter() - start)
    medians = {name: statistics.median(found) for name, found in times.items()}
    columns = {
        "program": "{}",
        "median": "{:.2f} s",
        "least": "{:.2f} s",
        "median / torch": "{:.2f}",
    }
    results = Table("From the command to its end", "2 ranks", columns, "time (s)")
    for name, seconds in medians.items():
        results.row(name, seconds, min(times[name]), seconds / medians["torch"])


if __name__ == "__main__":
    main()
