"""A job that goes on from its checkpoint after each kind of bad luck."""

import json

import pytest

from hvdlab.slurm.script import Request

TRAINING = "scripts/solutions/fashion_mnist_torch.py"
EPOCHS = 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_survives_all_bad_luck(slurm, data_dir):
    """A lost node, preemption, and the time limit, one after the other, in one job."""
    arguments = [f"--epochs={EPOCHS}", "--limit=2000", "--threads=1", "--no-cuda",
                 f"--data-dir={data_dir}"]  # fmt: skip
    job = slurm.train(Request([TRAINING, *arguments], 2, tasks=2, requeue=True))
    folder = slurm.work / "results" / f"fashion_mnist_torch-{job}"

    def epochs():
        path = folder / "epochs.jsonl"
        return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []

    def next_epoch():
        """Wait until a running job has saved another epoch's checkpoint."""
        checkpoint = folder / "checkpoint.pt"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        slurm.until(
            lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > before, "an epoch", 240
        )

    next_epoch()
    slurm.good("fail", "node2")
    assert slurm.state(job) == "PENDING"
    slurm.good("resume", "node2")
    next_epoch()
    slurm.good("preempt", job)
    slurm.until(lambda: slurm.run("squeue", "-h", "-n", "urgent").stdout == "", "the urgent job")
    next_epoch()
    assert "it is " in slurm.good("timeout", job)
    limit = slurm.run("squeue", "-h", "-j", job, "-O", "TimeLimit").stdout.strip()
    assert limit == "30:00", "the next attempt has the old limit again"
    output = slurm.finish(job)

    assert [one["epoch"] for one in epochs()] == list(range(1, EPOCHS + 1))
    assert sum(one["is_warmup"] for one in epochs()) == 4, "the first epoch of each attempt"
    assert "Node failure on node2" in output
    assert output.count("Slurm wants the nodes back: requeued") == 2
    restarts = slurm.run("scontrol", "show", "job", job).stdout
    assert "Restarts=3" in restarts


def test_mishaps_name_what_there_is(slurm):
    done = slurm.hvdlab("fail", "node7")
    assert (done.returncode, done.stderr) == (
        1, "hvdlab: there is no 'node7'; the nodes are node1, node2\n",
    )  # fmt: skip
    assert "not a job's number" in slurm.hvdlab("preempt", "1; rm").stderr
    assert slurm.hvdlab("timeout", "99999").returncode == 1
    job = slurm.submit("true")
    slurm.finish(job)
    assert f"job {job} does not run; it is over" in slurm.hvdlab("preempt", job).stderr
