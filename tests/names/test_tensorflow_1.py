"""Every name that only tensorflow.compat.v1 has is found in `tensorflow`, as it is there."""

import json
import subprocess
import sys

import mpi

# Each name is asked for by a program of its own, which has TensorFlow 2 as its `tf`.
ASKS = """
    import hvdnames.start, json
    import horovod.tensorflow, tensorflow, tensorflow.compat.v1
    from types import ModuleType

    v1, found, wrong = tensorflow.compat.v1, 0, []
    parts = [part for part in vars(v1) if isinstance(vars(v1)[part], ModuleType) and part[0] != "_"]
    for part in ["", *parts]:
        theirs = getattr(v1, part) if part else v1
        if part and part not in vars(tensorflow):
            continue  # a part that is gone is a name itself, of the package
        ours = vars(tensorflow)[part] if part else tensorflow
        for name in sorted(vars(theirs)):
            if name.startswith("_") or hasattr(ours, name):
                continue
            asked = ".".join(filter(None, ("tf", part, name)))
            try:
                supplied = eval(compile(asked, "program.py", "eval"), {"tf": tensorflow})
            except AttributeError as error:
                wrong.append(f"{asked}: {error}")
                continue
            found += 1
            if supplied is not getattr(theirs, name):
                wrong.append(asked)
    print(json.dumps([found, wrong]))
    """
# They do the same as in TensorFlow 1, and for that something else than those of compat.v1.
OTHERS = ["tf.enable_v2_behavior", "tf.set_random_seed"]


def test_each_name_of_compat_v1(tmp_path):
    (tmp_path / "asks.py").write_text("if 1:" + ASKS)
    done = subprocess.run(
        [sys.executable, "asks.py"],
        cwd=tmp_path,
        env=mpi.environment(extra={"TF_CPP_MIN_LOG_LEVEL": "3"}),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found, wrong = json.loads(done.stdout.splitlines()[-1])
    assert found > 550 and sorted(wrong) == OTHERS
