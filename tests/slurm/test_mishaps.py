"""A job that goes on from its checkpoint after each kind of bad luck."""

import json

import pytest

from hvdlab.slurm.script import Request

EPOCHS = 20
# The course's program, but with a pause after each checkpoint: bad luck has to come before the
# end of a training that takes a second.
PACED = """
import importlib.util, time
path = "scripts/solutions/fashion_mnist_torch.py"
spec = importlib.util.spec_from_file_location("script", path)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
save = script.save_checkpoint
def save_and_pause(*arguments):
    save(*arguments)
    time.sleep(2)
script.save_checkpoint = save_and_pause
script.main()
"""


@pytest.mark.slow
def test_a_training_goes_on_from_its_checkpoint(slurm, data_dir):
    """A lost node, preemption, and the time limit, one after the other, in one job."""
    arguments = [f"--epochs={EPOCHS}", "--limit=320", "--threads=1", "--no-cuda",
                 f"--data-dir={data_dir}"]  # fmt: skip
    (slurm.work / "paced.py").write_text(PACED)
    job = slurm.train(Request(["paced.py", *arguments], 2, tasks=2, requeue=True))
    folder = slurm.work / "results" / f"paced-{job}"

    def epochs():
        path = folder / "epochs.jsonl"
        return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []

    def next_epoch():
        """Wait until a running job has saved another epoch's checkpoint."""
        checkpoint = folder / "checkpoint.pt"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        slurm.until(
            lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > before, "an epoch"
        )

    next_epoch()
    slurm.good("fail", "node2")
    slurm.until(lambda: slurm.state(job) == "PENDING", "the job back in the queue")
    slurm.good("resume", "node2")
    next_epoch()
    slurm.good("preempt", job)
    slurm.until(lambda: slurm.run("squeue", "-h", "-n", "urgent").stdout == "", "the urgent job")
    next_epoch()
    assert "it is " in slurm.good("timeout", job)
    limit = slurm.run("squeue", "-h", "-j", job, "-O", "TimeLimit").stdout.strip()
    assert limit == "30:00", "the next attempt has the old limit again"
    output = slurm.finish(job, limit=400)

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
