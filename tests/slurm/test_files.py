"""The sbatch files of slurm/, and the generator that most of them come from."""

import re
import secrets
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hvdlab.slurm.cluster import SlurmError
from hvdlab.slurm.mishaps import minutes
from hvdlab.slurm.script import LAUNCHERS, Request, sbatch_file, write_files

FOLDER = Path(__file__).parents[2] / "slurm"
NAMES = sorted(path.name for path in FOLDER.glob("*.sbatch"))


def test_the_files_are_what_the_generator_writes(tmp_path):
    write_files(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (FOLDER / path.name).read_text(), (
            f"slurm/{path.name} differs; write it anew: python -m hvdlab.slurm.script slurm"
        )


@pytest.mark.parametrize("name", NAMES)
def test_bash_and_slurm_take_every_file(slurm, name):
    assert subprocess.run(["bash", "-n", str(FOLDER / name)]).returncode == 0
    done = slurm.run("sbatch", "--test-only", f"slurm/{name}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Job \d+ to start at .* on nodes node", done.stderr + done.stdout)


def test_the_files_name_no_account_and_no_path_of_a_user():
    for name in NAMES:
        text = (FOLDER / name).read_text()
        assert not re.search(r"#SBATCH.*(account|partition)|/home/|/scratch|module load \S+/", text)


def test_words_behind_the_file_reach_the_program(slurm):
    """As one writes `sbatch slurm/pytorch.sbatch --epochs 3`; in every file."""
    for name in NAMES:
        assert '"$@"' in (FOLDER / name).read_text(), name
    (slurm.work / "words.py").write_text("import sys; print(*sys.argv[1:], sep='|')")
    script = slurm.work / "words.sbatch"
    for launcher in LAUNCHERS:
        script.write_text(sbatch_file(Request(["words.py", "-x"], 1, tasks=1, launcher=launcher)))
        output = slurm.finish(slurm.submit(script, arguments=("--note", "two words")))
        assert "-x|--note|two words" in output


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(slurm, unbuffered):
    """Whether Python notices when it prints, or when it ends."""
    done = slurm.run("bash", "-c", "hvdlab slurm status | true", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (0, "")


def test_script_prints_what_it_was_asked_for(slurm):
    text = slurm.good(
        "script", "--nodes", "2", "--gpus", "4", "--time", "30", "--launcher", "mpirun",
        "train.py", "--epochs", "3", "--note", "it's mine",
    )  # fmt: skip
    lines = text.splitlines()
    for line in ("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4"):
        assert line in lines
    assert "#SBATCH --ntasks-per-node=4 " in text and "#SBATCH --time=30 " in text
    assert lines[-1].strip() == "python train.py --epochs 3 --note 'it'\"'\"'s mine' \"$@\""
    (slurm.work / "mine.sbatch").write_text(text)
    assert slurm.run("sbatch", "--test-only", "mine.sbatch").returncode == 0


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"launcher": "aprun"}, "srun, mpirun, horovodrun"),
        ({"nodes": 0}, "start at 1"),
        ({"gpus": 2, "tasks": 3}, "leave --tasks out"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(SlurmError, match=says):
        sbatch_file(Request(["train.py"], **wrong))


@pytest.mark.parametrize(
    "text, expected", [("0:05", 0), ("2:59", 2), ("1:00:01", 60), ("1-02:03:00", 1563)]
)
def test_slurms_times_in_minutes(text, expected):
    assert minutes(text) == expected


@pytest.mark.slow
def test_the_sweep_ends_in_one_table(slurm, data_dir):
    job = slurm.submit(
        FOLDER / "sweep.sbatch", "--array=0-1%1",
        arguments=("--epochs=2", "--limit=128", "--no-cuda", f"--data-dir={data_dir}"),
    )  # fmt: skip
    table = slurm.work / "results" / f"sweep-{job}" / "table.txt"

    def is_over() -> bool:
        queue = slurm.run("squeue", "-h")
        return queue.returncode == 0 and not queue.stdout.strip()

    slurm.until(is_over, "both elements' end")
    rows = [line.split() for line in table.read_text().splitlines()]
    assert rows[0] == ["ranks", "epochs", "images/s", "speed-up", "efficiency", "accuracy"]
    assert [row[:2] for row in rows[1:]] == [["1", "2"], ["2", "2"]]
    assert rows[1][3:5] == ["1.00", "100%"]
    speedup = float(rows[2][2].replace(",", "")) / float(rows[1][2].replace(",", ""))
    assert float(rows[2][3]) == pytest.approx(speedup, abs=0.02)


@pytest.mark.slow
def test_jupyter_answers_to_who_knows_the_token_only(slurm):
    token = secrets.token_hex(16)
    slurm.environment["JUPYTER_TOKEN"] = token
    try:
        job = slurm.submit(FOLDER / "jupyter.sbatch")
    finally:
        del slurm.environment["JUPYTER_TOKEN"]
    told = slurm.until(
        lambda: re.search(r"ssh -N -L 8888:127.0.0.1:(\d+) -J \S+ \S+", slurm.output(job)),
        "the line",
    )
    address = f"http://127.0.0.1:{told[1]}/api/contents"

    def status(query):
        try:
            return urllib.request.urlopen(address + query, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    assert slurm.until(lambda: status(f"?token={token}"), "Jupyter's answer") == 200
    assert status("") == 403
    log = slurm.work / f"jupyter-{job}.log"
    assert log.stat().st_mode & 0o077 == 0, "others could read the token"
    slurm.run("scancel", job)
    slurm.finish(job, "CANCELLED")
    slurm.until(lambda: status("") == 0, "the end of Jupyter")
