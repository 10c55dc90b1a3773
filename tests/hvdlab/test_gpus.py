"""How many processes a machine's GPUs are enough for. The driver's answer is written here."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import argparse, json, os
parser = argparse.ArgumentParser()
for name in ("--epochs", "--threads", "--log-dir", "--limit"):
    parser.add_argument(name)
args = parser.parse_args()
import hvdlite
hvdlite.init()
if hvdlite.rank() == 0:
    record = dict(epoch=1, seconds=1.0, images=int(args.limit or 100), images_per_second=100.0,
                  loss=0.1, accuracy=0.5, is_warmup=False, batch_size=10, learning_rate=0.1,
                  device=os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    with open(os.path.join(args.log_dir, "epochs.jsonl"), "w") as log:
        log.write(json.dumps(record) + "\\n")
hvdlite.shutdown()
"""


@pytest.fixture
def machine_with(tmp_path, monkeypatch):
    """`machine_with(2)` lets nvidia-smi tell of two GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(number: int) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        lines = "".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})\n" for i in range(number))
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}END\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def answers(code: str) -> list:
    """What a fresh interpreter makes of this machine."""
    code = f"import json, os\nfrom hvdlab.compare.machine import gpus, gpus_for\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_gpus_that_are_to_be_used(machine_with):
    machine_with(3)
    numbers = {"": 0, "-1": 0, "0,-1,1": 1, "2": 1, "0, 1": 2, "GPU-1,GPU-2": 2, "0,1,2,3": 3}
    code = f"""
found = [len(gpus())]
for visible in {list(numbers)}:
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    found.append(len(gpus()))
print(json.dumps(found))
"""
    assert answers(code) == [3, *numbers.values()]


@pytest.mark.parametrize("visible", [None, "1,0"])
def test_gpus_are_hidden_where_there_are_too_few(machine_with, monkeypatch, visible):
    machine_with(2)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    code = """
found = []
for processes in (1, 2, 3):
    with gpus_for(processes) as hidden:
        found.append([hidden, os.environ.get("CUDA_VISIBLE_DEVICES")])
    found[-1].append(os.environ.get("CUDA_VISIBLE_DEVICES"))
print(json.dumps(found))
"""
    assert answers(code) == [[0, visible, visible], [0, visible, visible], [2, "", visible]]


@pytest.mark.parametrize(
    ("gpus", "visible", "told"),
    [(1, "", "There is one GPU, and each of 2 processes wants one of its own"), (2, "all", "")],
)
def test_a_comparison_uses_gpus_that_are_enough(machine_with, bench, gpus, visible, told):
    machine_with(gpus)
    bench.environment["PATH"] = os.environ["PATH"]
    bench.script.write_text(SCRIPT)
    _, err, code = bench.run(bench.script, "--epochs", 1, "--max-repeats", 1)
    assert code == 0, err
    found = json.loads((bench.folder / "results/compare.json").read_text())
    runs = [run for run in found["runs"] if not run["is_reference"]]
    assert [run["processes"] for run in runs] == [1, 2]
    assert {run["repeats"][0][0]["device"] for run in runs} == {visible}
    assert len(found["machine"]["gpus"]) == (0 if visible == "" else gpus)
    notes = " ".join(found["notes"])
    assert told in notes if told else "There" not in notes


@pytest.mark.parametrize(("gpus", "images"), [(1, 640), (2, 12800)])
def test_a_lab_gives_gpus_more_to_do(machine_with, bench, monkeypatch, gpus, images):
    machine_with(gpus)
    monkeypatch.setenv("XDG_CACHE_HOME", bench.environment["XDG_CACHE_HOME"])
    bench.script.write_text(SCRIPT)
    told = answers(f"""
from types import SimpleNamespace
from hvdlab.conversion.measured import measure
script = SimpleNamespace(path={str(bench.script)!r}, is_converted=True)
result = measure(script, 640)
print()
print(json.dumps([run.last["images"] for run in result.runs if not run.reference]))
""")
    assert told == [images, images]


@pytest.mark.parametrize(("gpus", "visible"), [(1, ""), (2, "all")])
def test_a_notebook_leaves_a_single_gpu(machine_with, gpus, visible):
    machine_with(gpus)
    code = (
        "from IPython.testing.globalipapp import start_ipython\n"
        "shell = start_ipython()\n"
        "shell.run_line_magic('load_ext', 'hvdlab')\n"
        "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'all'), 'at the end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"{visible} at the end" in done.stdout.splitlines(), done.stdout + done.stderr
    assert ("There is one GPU here" in done.stdout) == (gpus == 1)
