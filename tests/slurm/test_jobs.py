"""Jobs on two nodes through srun, mpirun and horovodrun."""

import json
import re
from pathlib import Path

import pytest

from hvdlab.slurm.script import LAUNCHERS, Request

ROOT = Path(__file__).parents[2]
LINE = re.compile(
    r"rank (\d+) of (\d+): local rank (\d+) of (\d+) on (\S+), sees GPUs ([\d,]+|none)"
)
# What slurm/test_horovod.py does, by a program that starts sooner, since it needs no framework.
WHO = """
import os, sys
import hvdlite as hvd
hvd.init()
sys.stdout.write(
    f"rank {hvd.rank()} of {hvd.size()}: local rank {hvd.local_rank()} of {hvd.local_size()} "
    f"on {os.environ['SLURMD_NODENAME']}, "
    f"sees GPUs {os.environ.get('CUDA_VISIBLE_DEVICES') or 'none'}\\n"
)
"""


@pytest.fixture
def who(slurm):
    """The name of the program."""
    (slurm.work / "who.py").write_text(WHO)
    return "who.py"


def ranks(output):
    """(rank, size, local rank, local size, node, GPUs) of every rank, by rank."""
    found = [match.groups() for match in LINE.finditer(output)]
    return sorted((*map(int, one[:4]), *one[4:]) for one in found)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_rank_knows_its_place_and_sees_its_gpus(slurm, who, launcher):
    output = slurm.finish(slurm.train(Request([who], nodes=2, gpus=2, launcher=launcher)))
    assert ranks(output) == [
        (0, 4, 0, 2, "node1", "0,1"), (1, 4, 1, 2, "node1", "0,1"),
        (2, 4, 0, 2, "node2", "0,1"), (3, 4, 1, 2, "node2", "0,1"),
    ]  # fmt: skip


def test_the_first_file_to_submit(slurm):
    output = slurm.finish(slurm.submit(ROOT / "slurm/test_horovod.sbatch"))
    assert [one[4] for one in ranks(output)] == ["node1", "node1", "node2", "node2"]
    assert "4 ranks added up to 4" in output


def test_uneven_ranks_per_node(slurm, who):
    """sbatch -N 2 -n 3 gives one node two ranks: both are one host's, the third is alone."""
    lines = [
        f"srun --mpi=pmix python {who}",
        f"horovodrun -np 3 python {who}",
    ]
    output = slurm.finish(slurm.submit("\n".join(lines), "-N2", "-n3"))
    expected = [(0, 3, 0, 2, "node1"), (1, 3, 1, 2, "node1"), (2, 3, 0, 1, "node2")]
    assert [one[:5] for one in ranks(output)] == sorted(expected * 2)


def epochs(slurm, folder):
    """What a training has logged."""
    lines = (slurm.work / folder / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_two_nodes_learn_what_four_local_ranks_learn(slurm, data_dir):
    """The course's program, by each launcher."""
    program = "scripts/solutions/fashion_mnist_torch.py"
    command = [program, "--epochs=1", "--limit=480", "--batch-size=12", "--warmup-epochs=0",
               "--threads=1", "--no-cuda", f"--data-dir={data_dir}"]  # fmt: skip
    done = slurm.run("horovodrun", "-np", "4", "python", *command, "--log-dir=local")
    assert done.returncode == 0, done.stderr
    (local,) = epochs(slurm, "local")
    assert local["accuracy"] > 0.2, "it has learned something"
    for name in LAUNCHERS:
        slurm.finish(
            slurm.train(Request([*command, f"--log-dir={name}"], 2, tasks=2, launcher=name))
        )
        (seen,) = epochs(slurm, name)
        assert seen["processes"] == 4
        # Only the order of sums differs, so a digit far behind the point may.
        assert seen["loss"] == pytest.approx(local["loss"], rel=1e-3)
        assert seen["accuracy"] == pytest.approx(local["accuracy"], abs=2 / 480)


def test_a_step_that_pmix_does_not_connect_is_refused_by_every_rank(slurm, who):
    """Not two independent trainings: an error that names the option."""
    for plugin in ("none", "pmi2"):
        done = slurm.run("srun", "-n2", f"--mpi={plugin}", "python", who)
        assert done.returncode != 0
        assert not ranks(done.stdout)
        assert done.stderr.count("srun started 2 processes") == 2
        assert "use srun --mpi=pmix" in done.stderr


def test_the_step_counts_and_not_the_job(slurm, who):
    """Eight tasks in the job, two in the step."""
    job = slurm.submit(f"srun -N1 -n2 --mpi=pmix python {who}", "-N2", "--ntasks-per-node=4")
    assert [one[:4] for one in ranks(slurm.finish(job))] == [(0, 2, 0, 2), (1, 2, 1, 2)]


RUN = """
import os
import hvdlite
if __name__ == "__main__":
    def who():
        import hvdlite as hvd
        hvd.init()
        return hvd.rank(), hvd.size(), sorted(os.sched_getaffinity(0))
    print("answers", hvdlite.run(who, np=2))
"""


def test_the_launcher_in_a_step_of_one_task_starts_its_ranks_there(slurm, who):
    """horovodrun and hvdlite.run find too few slots nowhere, and bind nobody to one core."""
    (slurm.work / "function.py").write_text(RUN)
    lines = [f"srun -n1 -c4 horovodrun -np 2 python {who}", "srun -n1 -c4 python function.py"]
    output = slurm.finish(slurm.submit("\n".join(lines), "-n1", "-c4"))
    assert [one[:4] for one in ranks(output)] == [(0, 2, 0, 2), (1, 2, 1, 2)]
    answers = eval(output.partition("answers ")[2].splitlines()[0])  # our own output
    assert [one[:2] for one in answers] == [(0, 2), (1, 2)]
    cores = slurm.run("python", "-c", "import os; print(sorted(os.sched_getaffinity(0)))").stdout
    assert [one[2] for one in answers] == [eval(cores)] * 2


def test_the_launcher_in_a_batch_script_of_two_tasks_starts_two_ranks(slurm, who):
    output = slurm.finish(slurm.submit(f"horovodrun -np 2 python {who}", "-n2"))
    assert [one[:4] for one in ranks(output)] == [(0, 2, 0, 2), (1, 2, 1, 2)]


def test_the_launcher_started_by_two_tasks_says_which_of_both_to_use(slurm, who):
    done = slurm.run("srun", "-n2", "--mpi=pmix", "horovodrun", "-np", "2", "python", who)
    assert done.returncode != 0 and not ranks(done.stdout)
    assert done.stderr.count("srun started this launcher 2 times") == 1


SPIN = """
import sys, time
import hvdlite as hvd
hvd.init()
open(f"up-{sys.argv[1]}-{hvd.rank()}", "w").close()
while True:
    time.sleep(1)
"""
MARK = "MARK_OF_SPIN"


@pytest.fixture
def spinning(slurm):
    """Three jobs, one by each launcher, of four ranks on two nodes that never end by themselves.

    The mark is in all their variables.
    """
    (slurm.work / "spin.py").write_text(SPIN)
    for path in slurm.work.glob("up-*"):
        path.unlink()
    slurm.environment[MARK] = "1"
    jobs = [
        slurm.train(Request(["spin.py", name], 2, tasks=2, launcher=name, requeue=True))
        for name in LAUNCHERS
    ]
    slurm.started(jobs, lambda: len(list(slurm.work.glob("up-*"))) == 4 * len(jobs), "all ranks")
    assert len(slurm.processes_with(MARK)) >= 5 * len(jobs)
    yield jobs
    del slurm.environment[MARK]


def test_scancel_leaves_no_process(slurm, spinning):
    slurm.run("scancel", *spinning)
    for job in spinning:
        slurm.finish(job, "CANCELLED")
    slurm.until(lambda: not slurm.processes_with(MARK), "the end of all processes")


def test_a_lost_node_ends_the_jobs_and_is_named(slurm, spinning):
    slurm.good("fail", "node2")
    for job in spinning:
        slurm.until(lambda job=job: slurm.state(job) == "PENDING", "the job back in the queue")
    slurm.until(lambda: not slurm.processes_with(MARK), "the end of all processes")
    for job in spinning:
        assert "NODE FAILURE" in slurm.output(job)
        assert "node2 is down: lost its power" in slurm.output(job)
    assert re.search(r"node2 +down.* lost its power", slurm.hvdlab("status").stdout)


ELASTIC = """
import os
from pathlib import Path
import hvdlite as hvd
from hvdlite.elastic.state import ObjectState, run
from hvdlite.objects import broadcast_object

hvd.init()
me, done = os.environ["SLURMD_NODENAME"], Path("done")
state = ObjectState(broadcast_object, hvd.rank, sizes=[])

@run
def train(state):
    while len(state.sizes) < 8:
        if len(state.sizes) == 3 and me == "node2" and hvd.rank() == 2 and not done.exists():
            done.touch()
            os.kill(os.getpid(), 9)
        broadcast_object(None)
        state.sizes.append(hvd.size())
        state.commit()

train(state)
print(f"ended on {me} with {state.sizes}")
"""


def test_an_elastic_job_goes_on_within_the_allocation(slurm):
    (slurm.work / "elastic.py").write_text(ELASTIC)
    line = "horovodrun -np 4 --min-np 2 --max-np 4 python elastic.py"
    output = slurm.finish(slurm.submit(line, "-N2", "--ntasks-per-node=2"))
    assert output.count(f"ended on node1 with {[4] * 3 + [2] * 5}") == 2
    assert "node2 is left out" in output
