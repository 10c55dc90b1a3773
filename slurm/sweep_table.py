"""Write the table of a sweep: python slurm/sweep_table.py results/sweep-JOBID

Each folder in it holds the epochs.jsonl of one run and is named by its number of ranks.
"""

import json
import os
import statistics
import sys
from pathlib import Path

folder = Path(sys.argv[1])
rows = []
for path in sorted(folder.glob("*/epochs.jsonl"), key=lambda path: int(path.parent.name)):
    epochs = [json.loads(line) for line in path.read_text().splitlines()]
    # The first epoch warms up; it counts only where there is no other.
    timed = [one for one in epochs if not one["is_warmup"]] or epochs
    speed = statistics.median(one["images_per_second"] for one in timed)
    rows.append((epochs[-1]["processes"], len(epochs), speed, epochs[-1]["accuracy"]))

lines = ["ranks  epochs  images/s  speed-up  efficiency  accuracy"]
for ranks, epochs, speed, accuracy in rows:
    # Against the smallest run there is, taken as perfect.
    speedup = speed / rows[0][2] * rows[0][0]
    lines.append(
        f"{ranks:5}  {epochs:6}  {speed:8,.0f}  {speedup:8.2f}  {speedup / ranks:10.0%}  "
        f"{accuracy:8.4f}"
    )
text = "\n".join(lines) + "\n"
new = folder / "table.new"
new.write_text(text)
os.replace(new, folder / "table.txt")
print(text, end="")
