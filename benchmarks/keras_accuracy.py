"""Fashion-MNIST in Keras on one rank and on two: accuracy, and whether the weights stay equal.

    python benchmarks/keras_accuracy.py --epochs 3

Runs scripts/solutions/fashion_mnist_keras.py, with all its options, once for each number of ranks.
After each epoch the ranks compare their weights bit by bit.
"""

import hashlib
import runpy
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "solutions" / "fashion_mnist_keras.py"


def watched() -> None:
    """Run the script with a callback that compares the weights."""
    import horovod.keras as hvd
    import keras

    class Compare(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            data = b"".join(weight.tobytes() for weight in self.model.get_weights())
            digests = hvd.allgather_object(hashlib.sha256(data).hexdigest())
            if hvd.rank() == 0:
                same = "equal" if len(set(digests)) == 1 else "different"
                print(f"epoch {epoch + 1}: weights of {len(digests)} ranks {same}", flush=True)

    fit = keras.Model.fit

    def watched_fit(self, *args, callbacks=(), **options):
        return fit(self, *args, callbacks=[*callbacks, Compare()], **options)

    keras.Model.fit = watched_fit
    sys.argv[0] = str(SCRIPT)
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    if "--watched" in sys.argv:
        sys.argv.remove("--watched")
        watched()
    else:
        for ranks in ("1", "2"):
            print(f"# {ranks} rank(s)", flush=True)
            launcher = [sys.executable, "-m", "hvdrun", "-np", ranks, sys.executable]
            subprocess.run([*launcher, __file__, "--watched", *sys.argv[1:]], check=True)
