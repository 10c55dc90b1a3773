"""A job that goes on from its checkpoint after each kind of bad luck."""

import json

import pytest

from hvdlab.slurm.script import Request

EPOCHS = 5
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
    time.sleep(3)
script.save_checkpoint = save_and_pause
script.main()
"""
# A training that needs no framework and never ends; each attempt says that it has started.
ENDLESS = """
import time
print("an attempt", flush=True)
time.sleep(1000)
"""


def endless(slurm, node):
    """Submit the endless training for one node; returns the job once it runs there."""
    (slurm.work / "endless.py").write_text(ENDLESS)
    job = slurm.train(Request(["endless.py"], 1, tasks=1, requeue=True), f"--nodelist={node}")
    slurm.until(lambda: "an attempt" in slurm.output(job), "a running job")
    return job


@pytest.fixture(scope="module")
def timed_out(cluster):
    """A job on node1 that is running into its time limit, and the command that waits for it.

    Slurm takes a minute for that, and other tests may go on meanwhile.
    """
    job = endless(cluster, "node1")
    cluster.kept = {job}
    command = cluster.start("timeout", job)
    yield job, command
    cluster.kept = set()
    cluster.run("scancel", job)
    command.communicate(timeout=60)


@pytest.mark.slow
def test_a_training_goes_on_from_its_checkpoint(slurm, timed_out, data_dir):
    """After a lost node: no epoch is missing, and none is there twice."""
    arguments = [f"--epochs={EPOCHS}", "--limit=160", "--threads=1", "--no-cuda",
                 f"--data-dir={data_dir}"]  # fmt: skip
    (slurm.work / "paced.py").write_text(PACED)
    job = slurm.train(Request(["paced.py", *arguments], 2, tasks=2, requeue=True))
    folder = slurm.work / "results" / f"paced-{job}"
    slurm.until((folder / "checkpoint.pt").exists, "an epoch")
    slurm.good("fail", "node2")
    slurm.until(lambda: slurm.state(job) == "PENDING", "the job back in the queue")
    slurm.good("resume", "node2")
    output = slurm.finish(job)
    epochs = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    assert [one["epoch"] for one in epochs] == list(range(1, EPOCHS + 1))
    assert sum(one["is_warmup"] for one in epochs) == 2, "the first epoch of each attempt"
    assert "Node failure on node2" in output and "node2 is down: lost its power" in output
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job).stdout


def test_preemption_puts_the_job_back_into_the_queue(slurm):
    job = endless(slurm, "node2")
    assert "the nodes 30 s later (GraceTime)" in slurm.good("preempt", job)
    slurm.until(lambda: slurm.state(job) == "PENDING", "the job back in the queue")
    slurm.until(lambda: slurm.run("squeue", "-h", "-n", "urgent", "-t", "R").stdout, "the urgent")
    assert "Slurm wants the nodes back: requeued" in slurm.output(job)


# Commits, then waits in the first attempt for what happens to it.
ELASTIC = """
import os, time
import hvdlite as hvd
from hvdlite.elastic.state import ObjectState, run
from hvdlite.objects import broadcast_object

hvd.init()
attempt = int(os.environ.get("SLURM_RESTART_COUNT", 0))
state = ObjectState(broadcast_object, hvd.rank, attempts=[])

@run
def train(state):
    while len(state.attempts) < 6:
        state.attempts.append(attempt)
        state.commit()
        if attempt == 0 and len(state.attempts) == 3:
            open("committed", "w").close()
            time.sleep(1000)

train(state)
print(f"ended with {state.attempts}")
"""


@pytest.mark.slow
def test_an_elastic_state_on_disk_outlives_the_allocation(slurm):
    (slurm.work / "elastic_on_disk.py").write_text(ELASTIC)
    line = "horovodrun -np 2 --min-np 1 --max-np 2 python elastic_on_disk.py"
    text = f"export HVDLITE_ELASTIC_STATE=$PWD/states/$SLURM_JOB_ID\n{line}"
    job = slurm.submit(text, "-N1", "--ntasks-per-node=2", "--requeue", "--nodelist=node2")
    slurm.until((slurm.work / "committed").exists, "a commit")
    slurm.good("fail", "node2")
    slurm.until(lambda: slurm.state(job) == "PENDING", "the job back in the queue")
    slurm.good("resume", "node2")
    assert slurm.finish(job).count("ended with [0, 0, 0, 1, 1, 1]") == 2


@pytest.mark.slow
def test_the_time_limit_puts_the_job_back_into_the_queue(slurm, timed_out):
    job, command = timed_out
    output, errors = command.communicate(timeout=300)
    assert "it is " in output, errors
    assert f"job {job} has run for" in output, "a sign of life"
    limit = slurm.run("squeue", "-h", "-j", job, "-O", "TimeLimit").stdout.strip()
    assert limit == "30:00", "the next attempt has the old limit again"
    slurm.until(lambda: slurm.output(job).count("an attempt") == 2, "the next attempt")
    assert slurm.output(job).count("Slurm wants the nodes back: requeued") == 1


def test_mishaps_name_what_there_is(slurm):
    done = slurm.hvdlab("fail", "node7")
    assert (done.returncode, done.stderr) == (
        1, "hvdlab: there is no 'node7'; the nodes are node1, node2\n",
    )  # fmt: skip
    assert "not a job's number" in slurm.hvdlab("preempt", "1; rm").stderr
    done = slurm.hvdlab("timeout", "99999")
    assert (done.returncode, done.stderr) == (
        1, "hvdlab: job 99999 does not run; it is over, or never was; squeue lists all\n",
    )  # fmt: skip
    job = slurm.submit("true")
    slurm.finish(job)
    assert f"job {job} does not run; it is over" in slurm.hvdlab("preempt", job).stderr
