# %% [markdown]
# # Lab 10: Several nodes with Slurm
#
# On a cluster nobody starts programs by hand: you describe a job, a *workload manager* finds the nodes for it and runs it when they are free. Most clusters have Slurm.
#
# You will be able to
#
# - write an sbatch file: nodes, tasks, CPUs, time, and the line that starts the ranks;
# - submit it, and see whether it waits, and why;
# - read from the output which rank ran where;
# - write a job that survives the loss of a node.
#
# **Time**: 60 minutes.
#
# **Before** you begin: lab 06.
#
# **Without a GPU**: nothing changes; the jobs here ask for CPUs. Where a GPU would ask for more, the text says so. If there is no cluster, the notebook starts a real Slurm of two nodes on this machine.

# %%
# %load_ext hvdlab
import json
import os
import shutil
import time
from pathlib import Path

from hvdlab import conversion, jobs
from hvdlab.exercise import Check

where = jobs.connect()

# %% [markdown]
# ## What is there?
#
# `sinfo` lists the partitions and their nodes: *idle* ones are free.
# In a notebook a line that begins with `!` is a command, as you would type it on the login node.

# %%
# !sinfo

# %% [markdown]
# ## Who is where?
#
# This program says of each rank where it runs. Rank 0 gathers it, prints it and writes it to a file.

# %%
# %%writefile who.py
import json
import os

import hvdlite as hvd
from mpi4py import MPI

hvd.init()
me = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "local_rank": hvd.local_rank(),
    "node": os.environ.get("SLURMD_NODENAME", "?"),
    "threads": os.environ.get("OMP_NUM_THREADS", "?"),
}
everybody = MPI.COMM_WORLD.gather(me)
if everybody is not None:  # on rank 0
    for one in everybody:
        print("rank {rank} of {size}: local rank {local_rank} on {node}, OMP_NUM_THREADS={threads}".format(**one))
    with open("who.json", "w") as file:
        json.dump(everybody, file)

# %% [markdown] exercise="header"
# ## Exercise: describe a job
# goal: Write the head of an sbatch file: how many nodes and tasks, how long.
# minutes: 10
# difficulty: 1
# importance: core
#
# An sbatch file is a shell script. Lines that begin with `#SBATCH` come first and are for Slurm; the shell takes them for comments. A *task* is a process, and so a rank.
#
# Ask for 2 nodes (`--nodes`), 2 tasks on each (`--ntasks-per-node`), 1 CPU for each task (`--cpus-per-task`), and 5 minutes (`--time`).
# Replace both lines of YOUR CODE HERE: a line that is no comment ends the head.
#
# On GPUs you would add `--gpus-per-node=2`: one for each task.

# %% solution="header"
# %%writefile who.sbatch
# #!/bin/bash
#SBATCH --job-name=who
#SBATCH --output=who-%j.out
### BEGIN SOLUTION
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=5
### END SOLUTION

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" python who.py

# %% [markdown]
# The check submits your file as `sbatch who.sbatch` does, waits for its end, and looks at what the job did.

# %% check="header" points=3
def written(file):
    """The file's text; None while it is as it was, or where no Slurm can run it."""
    text = Path(file).read_text()
    return text if where and "YOUR CODE HERE" not in text else None


ranks = []
with Check("describe a job") as check:
    check.value(written("who.sbatch"), "who.sbatch")
    Path("who.json").unlink(missing_ok=True)
    job = jobs.submit("who.sbatch")
    state = job.wait()
    print(job.output())
    check.that(state == "COMPLETED", "the job came to a good end", f"Its state is {state}.", "read its output.")
    ranks = json.loads(Path("who.json").read_text()) if Path("who.json").exists() else []
    nodes = [one["node"] for one in ranks]
    check.that(len(ranks) == 4, "four ranks took part", f"There were {len(ranks)}.")
    check.that(
        len(set(nodes)) == 2 and all(nodes.count(node) == 2 for node in nodes),
        "two of them on each of two nodes",
        f"They ran on {nodes}.",
        "--nodes and --ntasks-per-node.",
    )
    check.that(
        [one["local_rank"] for one in ranks] == [0, 1, 0, 1],
        "the local ranks begin at 0 on each node",
        f"They are {[one['local_rank'] for one in ranks]}.",
    )
    check.that(all(one["threads"] == "1" for one in ranks), "each has one CPU, and one thread for it",
               f"They have {[one['threads'] for one in ranks]}.")
    check.that(job.about("TimeLimit") == "00:05:00", "it asked for five minutes",
               f"It asked for {job.about('TimeLimit')}.")

# %% [markdown]
# **Question.** Why ask for only five minutes, if the partition allows a day?
#
# <details><summary>Answer</summary>
#
# A short job fits into gaps that a long one doesn't, so it starts earlier. But Slurm ends it at its limit, finished or not: a little more than you need is right.
# </details>

# %% [markdown]
# ## The line that starts the ranks
#
# The shell script itself runs once, on the first node. `srun` starts the program once for each task, on all nodes, and `--mpi=pmix` tells these processes of each other.
# Leave it out where pmix is not the cluster's default (`scontrol show config | grep MpiDefault`), and each of them takes itself for the only one. With most programs nobody notices: each task trains the whole model for itself. hvdlite does:

# %%
# !srun --nodes=2 --ntasks=2 --time=2 python who.py

# %% [markdown]
# `srun --mpi=list` says whether your cluster's Slurm knows `pmix`. If not, `mpirun` or `horovodrun -np $SLURM_NTASKS` in the place of the whole srun line does the same: both find the nodes in Slurm's variables.
# Never two of them in one line: `srun horovodrun` would start the launcher once for each task.

# %% [markdown] exercise="train"
# ## Exercise: train on two nodes
# goal: Write the body of an sbatch file: threads, launcher, program.
# minutes: 10
# difficulty: 2
# importance: core
#
# This job has one rank on each of two nodes, with two CPUs. Write two lines:
#
# 1. `OMP_NUM_THREADS` is the number of CPUs of a task. Slurm says it in `$SLURM_CPUS_PER_TASK`.
# 2. Start `python "$TRAIN" $OPTIONS` by srun, as above. `--cpus-per-task` must be repeated, since newer versions of srun don't take it from the head, and `--kill-on-bad-exit=1` ends all ranks when one fails.
#
# `$TRAIN` is the path of the converted script of lab 06; sbatch passes the notebook's variables on.

# %%
os.environ["TRAIN"] = str(conversion.solution("fashion_mnist_torch.py"))

# %% solution="train"
# %%writefile train.sbatch
# #!/bin/bash
#SBATCH --job-name=train
#SBATCH --output=train-%j.out
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=10

OPTIONS="--epochs 2 --limit 500 --threads $SLURM_CPUS_PER_TASK --no-cuda --log-dir trained"
### BEGIN SOLUTION
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 python "$TRAIN" $OPTIONS
### END SOLUTION

# %% check="train" points=3
def epochs_of(pattern):
    """The epochs that a training has written to its log."""
    logs = list(Path().glob(f"{pattern}/epochs.jsonl"))
    return [json.loads(line) for line in logs[0].read_text().splitlines()] if logs else []


with Check("train on two nodes") as check:
    text = check.value(written("train.sbatch"), "train.sbatch")
    Path("trained/epochs.jsonl").unlink(missing_ok=True)
    job = jobs.submit("train.sbatch")
    state = job.wait()
    print(job.output())
    check.that(state == "COMPLETED", "the job came to a good end", f"Its state is {state}.", "read its output.")
    epochs = epochs_of("trained")
    check.that(len(epochs) == 2, "two epochs were trained", f"{len(epochs)} were.")
    processes = {one["processes"] for one in epochs}
    check.that(
        processes == {2},
        "by two ranks together",
        f"The training says it has {processes or 'no'} processes.",
        "srun --mpi=pmix",
    )
    check.that("OMP_NUM_THREADS" in text, "OMP_NUM_THREADS is set", hint="export NAME=value")

# %% [markdown]
# ## Waiting
#
# `squeue --me` shows your jobs: `R` is running, `PD` is pending, and the last column says why. One job sleeps here, and another one may start only after its end (`--dependency`).

# %%
busy = waiting = None
if where:
    busy = jobs.submit_command("sleep 280", "--job-name=busy")
    waiting = jobs.submit_command("hostname", "--job-name=waiting", f"--dependency=afterany:{busy.number}")
    time.sleep(2)

# %%
# !squeue --me

# %%
reason_said = None
if busy and waiting:
    reason_said = waiting.about("Reason")
    busy.cancel()
    waiting.cancel()

# %% [markdown] exercise="reason"
# ## Exercise: why does it wait?
# goal: Read the reason for which a job waits, and know what it means.
# minutes: 5
# difficulty: 1
# importance: useful
#
# Write the word in the last column of the waiting job (without brackets) as a text: `"..."`.
# In a job of your own, which of these would *never* start: `Priority`, `Resources`, `PartitionTimeLimit`, `Dependency`? Write it, too.

# %% solution="reason"
reason, never_starts = None, None
### BEGIN SOLUTION
reason = reason_said
never_starts = "PartitionTimeLimit"
### END SOLUTION

# %% check="reason" points=2
with Check("why does it wait?") as check:
    check.value([reason, never_starts], "reason and never_starts")
    check.that(str(reason).strip("()") == reason_said, "that is the reason", f"You wrote {reason!r}.", "the last column of squeue.")
    check.that(
        never_starts == "PartitionTimeLimit",
        "a job that asks for more time than the partition allows never starts",
        f"You wrote {never_starts!r}.",
        "which one does waiting not help?",
    )

# %% [markdown]
# ## When a node is lost
#
# Nodes fail, and more urgent jobs push others away. Slurm can put such a job back into the queue, and it starts again *from the beginning of its file*, with the same number.
# What it had computed is lost, if it has no checkpoint, or doesn't read it.
# A job that reaches its time limit is simply ended; it must ask for another turn itself (see "If you have time left").

# %% [markdown] exercise="requeue"
# ## Exercise: a job that comes back
# goal: Let a job go on from its checkpoint after it has lost a node.
# minutes: 12
# difficulty: 3
# importance: core
#
# 1. In the head: `--requeue` lets Slurm put the job back, and `--open-mode=append` keeps the output of the first attempt.
# 2. `OPTIONS` must name a folder for checkpoints that all attempts share and no other job: `--log-dir kept-$SLURM_JOB_ID`. And `--resume` reads what is there.
#
# The check submits the job, waits for its second epoch, and takes a node away.

# %% solution="requeue"
# %%writefile survive.sbatch
# #!/bin/bash
#SBATCH --job-name=survive
#SBATCH --output=survive-%j.out
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=10
### BEGIN SOLUTION
#SBATCH --requeue
#SBATCH --open-mode=append
### END SOLUTION

OPTIONS="--log-dir kept"
### BEGIN SOLUTION
OPTIONS="--log-dir kept-$SLURM_JOB_ID --resume"
### END SOLUTION
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    python "$TRAIN" --epochs 8 --limit 500 --threads 1 --no-cuda $OPTIONS

# %% check="requeue" points=4
with Check("a job that comes back") as check:
    check.value(written("survive.sbatch"), "survive.sbatch")
    for old in Path().glob("kept*"):
        shutil.rmtree(old)
    job = jobs.submit("survive.sbatch")
    deadline = time.monotonic() + 120
    while len(epochs_of("kept*")) < 2 and time.monotonic() < deadline and job.is_open:
        time.sleep(0.2)
    print(jobs.lose_a_node(job))
    state = job.wait()
    print(job.output())
    restarts = int(job.about("Restarts") or 0)
    check.that(restarts >= 1, "Slurm has started it a second time", f"It ended as {state}.", "--requeue")
    check.that(state == "COMPLETED", "and it came to a good end", f"Its state is {state}.")
    epochs = epochs_of("kept*")
    check.that(
        [one["epoch"] for one in epochs] == list(range(1, 9)),
        "each of the eight epochs is in the log once",
        f"There are the epochs {[one['epoch'] for one in epochs]}.",
        "a folder of the job's own, and --resume.",
    )
    begun = [one["epoch"] for one in epochs if one["is_warmup"]]
    check.that(
        len(begun) == 2 and begun[1] > 1,
        f"the second attempt went on with epoch {begun[-1] if begun else '?'}",
        f"The attempts began with the epochs {begun}.",
        "--resume",
    )
    check.that("epoch 1/8" in job.output(), "its output holds both attempts", hint="--open-mode=append")

# %% [markdown]
# **Question.** Which rank read the checkpoint in the second attempt, and how did the others get it?
#
# <details><summary>Answer</summary>
#
# Rank 0 alone, and it broadcast the epoch, the weights and the optimizer's state (steps 5 and 8 of lab 06). Had the node with the file's only copy been the lost one, there would be nothing to read: checkpoints belong on a file system that all nodes share.
# </details>

# %% [markdown]
# ## Clear up
#
# The class's cluster stays, of course. One that this notebook has started ends here, with all its jobs.

# %%
jobs.disconnect()

# %% [markdown]
# ## Summary
#
# - The head of an sbatch file says what you need: nodes, tasks (ranks), CPUs or GPUs for each, time.
# - `srun --mpi=pmix` starts one rank for each task; without it every rank is alone.
# - `squeue` says whether a job waits, and why; `scontrol show job` says all the rest.
# - `--requeue`, a checkpoint on a shared file system, and a program that resumes: then a lost node costs an epoch, not the job.
#
# `hvdlab slurm script --help` writes sbatch files for you, and the folder `slurm/` of the course has ready ones, also for GPUs, TensorFlow and Keras, and for other schedulers.
#
# ### If you have time left
#
# 1. Write an array job (`--array=0-2`) that trains with 1, 2 and 4 ranks, and make a table of their speeds; `slurm/sweep.sbatch` shows one.
# 2. Let Slurm send your script a signal a minute before the time limit (`--signal=B:USR1@60`), and requeue from there: `slurm/pytorch_resume.sbatch`. Try it with `hvdlab slurm timeout JOB`.
# 3. With `--gpus-per-task=1` each rank sees one GPU only, number 0. What would step 2 of lab 06 do then on the second rank of a node?
