"""What the supply of old names costs a program that uses none, in seconds of its processor's time.

    python benchmarks/old_names.py --pairs 10

Starts a program that imports Keras and horovod.tensorflow.keras, with and without the old names by
turns. The least time of each counts: all that disturbs a program makes it slower.
"""

import argparse
import os
import subprocess
import sys

PROGRAM = """
import hvdnames.start, os
import keras, tensorflow
import horovod.tensorflow.keras
print(sum(os.times()[:2]))
"""


def seconds(old_names: bool) -> float:
    env = {**os.environ, "HVDLITE_OLD_NAMES": str(int(old_names)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    seconds(True)  # files come from the disk
    found = [(seconds(True), seconds(False)) for _ in range(pairs)]
    with_names, without = (min(each) for each in zip(*found, strict=True))
    print(f"without: {without:.3f} s; with old names: {1000 * (with_names - without):+.0f} ms")


if __name__ == "__main__":
    main()
