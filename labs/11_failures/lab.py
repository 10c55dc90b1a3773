# %% [markdown]
# # Lab 11: When it goes wrong
#
# Every distributed program fails some day. This lab makes the usual failures on purpose, so that you know them when they come by themselves.
#
# You will be able to
#
# - read what a job says when a rank dies, skips a collective, or brings another shape;
# - keep a NaN on one rank from ruining all of them;
# - write checkpoints that are whole, and written once;
# - resume a training, with fewer ranks if need be;
# - let a training go on by itself when a rank dies.
#
# **Time**: 60 minutes.
#
# **Before** you begin: labs 02 and 06.
#
# **Without a GPU**: nothing changes.

# %%
# %load_ext hvdlab
from pathlib import Path

import horovod
import torch

from hvdlab.exercise import Check
from hvdlab.failing import run

# %% [markdown]
# `run("program.py", np=2)` starts a program as `horovodrun -np 2 python program.py` does, and prints what it says.
# It leaves out the lines of tracebacks that lie inside libraries: what counts is your own line, and the last one.

# %% [markdown]
# ## A rank dies
#
# The system kills processes that take more memory than there is. This program plays that: rank 1 gets the signal that the system would send.

# %%
# %%writefile dies.py
import os
import signal

import horovod.torch as hvd
import torch

hvd.init()
for step in range(5):
    if step == 3 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as if there were no memory left
    hvd.allreduce(torch.ones(3), name="gradient")
print("finished")

# %%
killed = run("dies.py")

# %% [markdown]
# **What you see**: the rank and the signal. An exit code of 128 + N stands for signal N: 137 is 128 + 9, and 9 is SIGKILL.
#
# **What it means**: nobody can go on without rank 1, so the whole job ends. It does not hang.
#
# **The fix**: on a cluster look for "oom" in the output of `sacct` or `dmesg`, then a smaller batch, fewer workers that load data, or more memory in the job file.
#
# An error in Python looks different: the rank that raised it has a traceback, and the others say whom they were waiting for.

# %%
# %%writefile raises.py
import horovod.torch as hvd
import torch

hvd.init()
files = ["part-0", "part-1"] if hvd.rank() == 0 else ["part-0"]
for step in range(2):
    part = files[step]
    hvd.allreduce(torch.ones(3), name="gradient")

# %%
raised = run("raises.py")

# %% [markdown] exercise="blame"
# ## Exercise: read it
# goal: Find the first cause in the output of a job with several ranks.
# minutes: 5
# difficulty: 1
# importance: core
#
# Two ranks complain above. Which of them is the cause, and which error ended it? Write the number of the rank and the name of the error, such as "ValueError".

# %% solution="blame"
guilty_rank, error_name = None, None
### BEGIN SOLUTION
guilty_rank, error_name = 1, "IndexError"
### END SOLUTION

# %% check="blame" points=2
with Check("read it") as check:
    check.value([guilty_rank, error_name], "guilty_rank and error_name")
    check.that(
        guilty_rank == 1,
        "the rank that stopped first",
        f"You said rank {guilty_rank}.",
        "a HorovodInternalError tells of somebody else's trouble; whose?",
    )
    check.that(
        error_name == "IndexError",
        "the error that began it",
        f"You said {error_name}.",
        "the last line of that rank's traceback begins with it.",
    )

# %% [markdown]
# ## A rank skips a collective
#
# The most frequent mistake of all: a collective below `if hvd.rank() == 0`.
# All ranks must call it, or those who do wait for those who don't.

# %%
# %%writefile skips.py
import time

import horovod.torch as hvd
import torch

hvd.init()
accuracy = torch.tensor(0.5 + hvd.rank() / 10)
if hvd.rank() == 0:
    mean = hvd.allreduce(accuracy, name="accuracy")
    print(f"accuracy {mean.item():.2f}")
time.sleep(30)  # rank 1 has other things to do, such as the next epoch

# %% [markdown]
# In real life that waits for ever. Two variables help: after `HOROVOD_STALL_CHECK_TIME_SECONDS` (60 by default) hvdlite says who waits for whom, and after `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS` (never by default) it gives up.

# %%
stalled = run(
    "skips.py", HOROVOD_STALL_CHECK_TIME_SECONDS="2", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="5"
)

# %% [markdown]
# **What you see**: the name of the call, who waits, and for whom. Give your calls names, and you will know which one it is.
#
# **What it means**: rank 1 is alive and somewhere else.
#
# **The fix**: all ranks call, one prints.

# %% [markdown] exercise="skip"
# ## Exercise: all call, one prints
# goal: Repair the most frequent mistake of all.
# minutes: 8
# difficulty: 1
# importance: core
#
# Write a function that all ranks call with their own accuracy. Rank 0 prints the mean; all ranks return it, as a Python number.


# %% solution="skip"
def report(accuracy):
    import horovod.torch as hvd
    import torch

    ### BEGIN SOLUTION
    mean = hvd.allreduce(torch.tensor(accuracy), name="accuracy").item()
    if hvd.rank() == 0:
        print(f"accuracy {mean:.2f}")
    return mean
    ### END SOLUTION


# %% check="skip" points=3
def call_report():
    import contextlib
    import io

    import horovod.torch as hvd

    hvd.init()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        mean = report(0.5 + hvd.rank() / 10)
    return mean, printed.getvalue()


with Check("all call, one prints") as check:
    answers = horovod.run(call_report, np=2)
    check.value([mean for mean, _ in answers], "report()")
    check.that(
        all(abs(mean - 0.55) < 1e-6 for mean, _ in answers),
        "both ranks have the mean of 0.5 and 0.6",
        f"They have {[round(mean, 3) for mean, _ in answers]}.",
        "every rank calls allreduce, and every rank returns its result.",
    )
    check.that(
        bool(answers[0][1].strip()) and not answers[1][1].strip(),
        "only rank 0 prints",
        f"Rank 0 printed {answers[0][1]!r}, rank 1 printed {answers[1][1]!r}.",
    )

# %% [markdown]
# ## Shapes that differ

# %%
# %%writefile shapes.py
import horovod.torch as hvd
import torch

hvd.init()
words = 1000 if hvd.rank() == 0 else 1004  # each rank counted the words in its own part of the text
embedding = torch.nn.Embedding(words, 8)
hvd.broadcast_parameters(embedding.state_dict(), root_rank=0)

# %%
differ = run("shapes.py")

# %% [markdown]
# **What you see**: the tensor, and the shape on each rank.
#
# **What it means**: the models of the ranks are not the same. What depends on the data of one rank (a vocabulary, the number of classes, the length of the longest sequence) must be agreed on first.
#
# **The fix**: let one rank decide and tell the others: `words = hvd.broadcast_object(words, root_rank=0)`, or take the largest: `hvd.allreduce(torch.tensor(words), op=hvd.Max)`.

# %% [markdown]
# ## NaN on one rank
#
# One bad image, one division by zero, and the gradient of one rank is NaN. The mean of NaN and anything is NaN, so after one step all ranks have lost their weights, also those that never saw the image. No error, no message.


# %%
def train_with_a_bad_image(step_function):
    """Three steps on two ranks; rank 1's second image is bad. Returns weights and skipped steps."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    done = []
    for step in range(3):
        images = torch.full((2, 4), 1.0 + hvd.rank())
        if step == 1 and hvd.rank() == 1:
            images[0, 0] = float("nan")
        optimizer.zero_grad()
        loss = (model(images) - 1).square().mean()
        done.append(step_function(loss, optimizer))
        if done[-1] is None:
            break
    return [round(weight, 4) for weight in model.weight[0].tolist()], done


def careless_step(loss, optimizer):
    loss.backward()
    optimizer.step()
    return True


for rank, (weights, _) in enumerate(
    horovod.run(train_with_a_bad_image, args=(careless_step,), np=2)
):
    print(f"rank {rank}: weights {weights}")

# %% [markdown] exercise="nan"
# ## Exercise: skip it together
# goal: Let all ranks skip the step in which one of them has a bad loss.
# minutes: 12
# difficulty: 3
# importance: core
#
# If only the rank with the NaN skips, the other one waits for ever: stepping is a collective. So the ranks must *agree* first, and before the backward pass, in which the reduction of the gradients begins.
# Write a step that does `loss.backward()` and `optimizer.step()` if the losses of all ranks are finite, and otherwise skips both on all of them.
# Return whether the step was done. `torch.isfinite(loss)` tells about one rank; `op=hvd.Min` takes the smallest of all ranks.


# %% solution="nan"
def careful_step(loss, optimizer):
    import horovod.torch as hvd
    import torch

    ### BEGIN SOLUTION
    mine = torch.isfinite(loss).to(torch.int32).reshape(1)
    all_good = hvd.allreduce(mine, op=hvd.Min, name="all finite").item() == 1
    if all_good:
        loss.backward()
        optimizer.step()
    return all_good
    ### END SOLUTION


# %% check="nan" points=4
with Check("skip it together") as check:
    results = horovod.run(train_with_a_bad_image, args=(careful_step,), np=2)
    check.value([done[0] for _, done in results], "careful_step()")
    check.that(
        all(weight == weight for weights, _ in results for weight in weights),
        "no weight is NaN at the end",
        f"The weights are {[weights for weights, _ in results]}.",
        "is the decision made before loss.backward()?",
    )
    check.that(
        results[0][0] == results[1][0],
        "both ranks have the same weights",
        f"The weights are {[weights for weights, _ in results]}.",
        "both must skip, or both must step.",
    )
    check.that(
        [list(map(bool, done)) for _, done in results] == [[True, False, True]] * 2,
        "both ranks skipped the second step, and only that",
        f"They did {[done for _, done in results]}.",
        "both must know of each other's loss: op=hvd.Min.",
    )

# %% [markdown]
# ## A checkpoint written by all
#
# All ranks write the same file at the same time, now one a little later, now the other. What is in it afterwards?


# %%
def write_by_all(path):
    import time

    import horovod.torch as hvd

    hvd.init()
    hvd.barrier()
    with open(path, "w") as file:
        for layer in range(4):
            hvd.barrier()
            time.sleep(0.05 * ((layer + hvd.rank()) % 2))
            file.write(f"layer {layer}: the weights of rank {hvd.rank()}\n")
            file.flush()


horovod.run(write_by_all, args=(str(Path("by-all.txt").resolve()),), np=2)
print(Path("by-all.txt").read_text())

# %% [markdown]
# Four lines of one length hide it: each line is the one that was written last. With files of different lengths, or on a network file system, it is garbage.
# And if the job is killed while it writes, the file ends in the middle, and the last good checkpoint is gone.

# %% [markdown] exercise="checkpoint"
# ## Exercise: whole, and once
# goal: Write a checkpoint that is never half-written, by one rank only.
# minutes: 10
# difficulty: 2
# importance: core
#
# Write `save(path, state)`, which all ranks call. Only rank 0 writes: first to another name beside it, then `os.replace(new, path)`, which the system does at once or not at all.
# When it returns, on any rank, the file is there: `hvd.barrier()`.


# %% solution="checkpoint"
def save(path, state):
    import os

    import horovod.torch as hvd
    import torch

    ### BEGIN SOLUTION
    if hvd.rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    hvd.barrier()
    ### END SOLUTION


# %% check="checkpoint" points=3
def save_on_both(path):
    import os
    import time

    import horovod.torch as hvd
    import torch

    hvd.init()
    written = []
    real_save = torch.save

    def slow_save(state, target, *rest, **more):
        written.append(os.path.abspath(getattr(target, "name", target)))
        time.sleep(0.5)
        real_save(state, target, *rest, **more)

    setattr(torch, "save", slow_save)
    save(path, {"epoch": 3, "rank": hvd.rank()})
    return written, os.path.exists(path)


with Check("whole, and once") as check:
    target = Path("checkpoint.pt").resolve()
    target.unlink(missing_ok=True)
    answers = horovod.run(save_on_both, args=(str(target),), np=2)
    first, second = answers
    check.value(True if any(written for written, _ in answers) else None, "save()")
    check.that(
        len(first[0]) == 1 and not second[0],
        "rank 0 writes once, rank 1 doesn't write",
        f"Rank 0 wrote {len(first[0])} times, rank 1 {len(second[0])} times.",
    )
    check.that(
        str(target) not in first[0] and target.exists(),
        "written under another name, then moved into place",
        f"Written: {[Path(name).name for name in first[0]]}.",
        "write beside it first; a rename is done at once or not at all.",
    )
    check.that(
        first[1] and second[1],
        "when save() returns the file is there, for both ranks",
        f"Rank 0 sees it: {first[1]}, rank 1 sees it: {second[1]}.",
        "rank 1 is faster; let it wait.",
    )

# %% [markdown]
# ## Resume, with fewer ranks
#
# A job lost a machine. Its checkpoint is there, and two ranks have become one.
# What must be right afterwards: the weights, the state of the optimizer (momentum), the number of the epoch, and the learning rate, which depends on the number of ranks.

# %% [markdown] exercise="resume"
# ## Exercise: go on where it stopped
# goal: Load a checkpoint on rank 0 and bring all ranks to the same state.
# minutes: 12
# difficulty: 2
# importance: core
#
# Write `resume(path, model, optimizer)`: rank 0 looks whether the file is there and loads `model`, `optimizer` and `epoch` from it.
# Then all ranks get the first epoch (0 without a file), the weights, and the state of the optimizer from rank 0. Return the epoch.
# Only rank 0 may look at the file: on another machine it may not be there.


# %% solution="resume"
def resume(path, model, optimizer):
    import os

    import horovod.torch as hvd
    import torch

    ### BEGIN SOLUTION
    epoch = 0
    if hvd.rank() == 0 and os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch = state["epoch"]
    epoch = hvd.broadcast_object(epoch, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return epoch
    ### END SOLUTION


# %%
def train(path, resume, epochs, die_in=None):
    """Train to `epochs`; what each rank saw: first epoch, rate, losses, weights, momentum."""
    import os
    import signal

    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())  # each rank starts differently, until they are brought together
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    # Rank 1 looks for the file in vain, as it would on another machine.
    first = resume(path if hvd.rank() == 0 else path + ".elsewhere", model, optimizer)
    if first is None:
        return None
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()  # the checkpoint's rate was that of another number of ranks
    images = torch.randn(256, 8, generator=torch.Generator().manual_seed(7))
    truth = images.sum(1, keepdim=True)
    start = [weight.clone() for weight in model.parameters()]
    momentum = [
        optimizer.state[p]["momentum_buffer"].clone()
        for p in model.parameters()
        if "momentum_buffer" in optimizer.state[p]
    ]
    losses = []
    for epoch in range(first, epochs):
        if epoch == die_in and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = 0.0
        together = 16 * hvd.size()  # images a step: 16 on each rank
        steps = 256 // together
        for step in range(steps):
            mine = slice(together * step + hvd.rank(), together * (step + 1), hvd.size())
            optimizer.zero_grad()
            loss = (model(images[mine]) - truth[mine]).square().mean()
            loss.backward()
            optimizer.step()
            total += hvd.allreduce(loss.detach(), name="loss").item() / steps
        losses.append(total)
        if hvd.rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch + 1, "loss": total}, path + ".new")
            os.replace(path + ".new", path)
    return first, optimizer.param_groups[0]["lr"], losses, start, momentum


# %% check="resume" points=4
with Check("go on where it stopped") as check:
    path = Path("training.pt").resolve()
    path.unlink(missing_ok=True)
    fresh = horovod.run(train, args=(str(path), resume, 2), np=2)
    check.value([fresh[0]], "resume()")
    check.that(
        [one[0] for one in fresh] == [0, 0],
        "without a checkpoint both ranks begin with epoch 0",
        f"They began with {[one[0] for one in fresh]}.",
    )
    check.that(
        all(torch.equal(a, b) for a, b in zip(fresh[0][3], fresh[1][3])),
        "and with the same weights",
        "Each rank kept the weights of its own seed.",
        "broadcast_parameters, also without a file.",
    )
    try:
        horovod.run(train, args=(str(path), resume, 6, 4), np=2)
        died = False
    except Exception as error:
        died = True
        print(f"The job on two ranks lost rank 1, as it should: {str(error).splitlines()[-1][:90]}")
    saved = torch.load(path)
    check.that(
        died and saved["epoch"] == 4,
        "the job that was resumed on two ranks got to epoch 4, where rank 1 died",
        f"The checkpoint is of epoch {saved['epoch']}.",
        "do both ranks get the epoch of rank 0's file?",
    )
    (alone,) = horovod.run(train, args=(str(path), resume, 8), np=1)
    check.that(
        alone[0] == saved["epoch"],
        f"one rank alone goes on with epoch {saved['epoch']}",
        f"It began with {alone[0]}.",
    )
    check.that(
        all(torch.equal(a, b) for a, b in zip(alone[3], saved["model"].values())),
        "with the weights of the checkpoint",
        "The weights are others.",
    )
    check.that(
        len(alone[4]) == 2,
        "and with the momentum of the checkpoint",
        "The optimizer starts from nothing.",
        "load and broadcast the state of the optimizer, too.",
    )
    check.that(
        alone[2][-1] < saved["loss"],
        f"the loss goes on falling, from {saved['loss']:.4f} to {alone[2][-1]:.4f}",
        f"It went from {saved['loss']:.4f} to {alone[2][-1]:.4f}.",
    )

# %% [markdown]
# **Question.** `train` sets the learning rate anew after `resume`. What would happen without that line?
#
# <details><summary>Answer</summary>
#
# The state of the optimizer holds the learning rate of two ranks, 0.02. The one rank alone averages over half as many images and should take half as long steps: 0.01.
# The samples of an epoch are shared out anew by themselves, since each rank takes every `hvd.size()`-th.
# </details>

# %% [markdown]
# ## Going on without it
#
# With a checkpoint somebody must start the job again. An *elastic* job does that by itself: when a rank dies, the others start anew within seconds and go on from what they have committed last, which lies in the memory of their hosts.
#
# - `hvd.elastic.TorchState` holds what must not be lost. Its values are attributes, such as `state.epoch`.
# - `state.commit()` keeps all of it as it is now.
# - A function that is wrapped by `hvd.elastic.run` is called again after each loss, on the ranks that are left, with the state of the last commit. So it has to go on from there, and not from 0.
#
# The job below is what `horovodrun -np 3 --min-np 2 -H localhost:2,127.0.0.1:1 python train.py` starts: three ranks on two hosts, which here are two names of your machine. A host whose rank dies is left out.


# %%
def elastic_training(keep_going, folder, pause=0.0):
    """A training in which rank 2 is killed in epoch 4; the losses, and who trained each epoch."""
    import os
    import signal
    import time
    from pathlib import Path

    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    images = torch.randn(240, 8, generator=torch.Generator().manual_seed(7))
    truth = images.sum(1, keepdim=True)
    state = hvd.elastic.TorchState(model, optimizer, epoch=0, losses=[], trained=[])

    def one_epoch(epoch):
        """Train one epoch; the mean loss of all ranks."""
        killed = Path(folder, "killed")
        if epoch == 4 and hvd.rank() == 2 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pause)
        total = torch.zeros(())
        for step in range(10):
            mine = slice(24 * step + hvd.rank(), 24 * (step + 1), hvd.size())
            optimizer.zero_grad()
            loss = (model(images[mine]) - truth[mine]).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.detach() / 10
        state.trained.append((epoch, hvd.size()))
        if len(state.trained) > 40:
            raise RuntimeError("keep_going() trains on and on; does it count state.epoch?")
        return hvd.allreduce(total, name="loss").item()

    print(f"rank {hvd.rank()} of {hvd.size()} is process {os.getpid()}")
    hvd.elastic.run(keep_going)(state, one_epoch)
    return state.losses, state.trained


# %% [markdown] exercise="elastic"
# ## Exercise: the training goes on
# goal: Write a training loop that survives the death of a rank.
# minutes: 8
# difficulty: 2
# importance: core
#
# Write `keep_going(state, one_epoch)`, which trains until 12 epochs are done. `one_epoch(state.epoch)` trains one and returns its loss, which belongs at the end of the list `state.losses`.
# Count `state.epoch`, and commit after each epoch. Nothing but `state` outlives the loss of a rank: what you keep in other variables is gone.


# %% solution="elastic"
def keep_going(state, one_epoch):
    ### BEGIN SOLUTION
    while state.epoch < 12:
        state.losses.append(one_epoch(state.epoch))
        state.epoch += 1
        state.commit()
    ### END SOLUTION


# %% check="elastic" points=3
import tempfile

HOSTS = "localhost:2,127.0.0.1:1"
with Check("the training goes on") as check, tempfile.TemporaryDirectory() as folder:
    answers = horovod.run(elastic_training, (keep_going, folder), np=3, min_np=2, hosts=HOSTS)
    losses, trained = answers[0]
    check.value(trained or None, "keep_going()")
    epochs = [epoch for epoch, _ in trained]
    check.that(
        epochs == list(range(12)),
        "each of the 12 epochs was trained once, though a rank died",
        f"Trained were the epochs {epochs}.",
        "go on from state.epoch, count it before the commit, and commit after each epoch.",
    )
    check.that(
        [size for _, size in trained] == [3] * 4 + [2] * 8,
        "the first four on three ranks, the others on the two that were left",
        f"The numbers of ranks were {[size for _, size in trained]}.",
        "without a commit all begins anew when a rank dies.",
    )
    check.that(
        len(losses) == 12 and losses[-1] < losses[3] < losses[0],
        "the loss went on falling",
        f"The losses are {[round(loss, 4) for loss in losses]}.",
        "append what one_epoch returns to state.losses.",
    )

# %% [markdown]
# Now kill a rank yourself, or let your neighbour do it: this training takes half a second for an epoch, and each rank tells its process. Open a terminal and write `kill -9 PROCESS`. If nobody does, rank 2 dies in epoch 4 again.
# With `cooldown_range` a host comes back after some seconds, so you may kill more than once; on one rank alone it goes on, too.

# %%
with tempfile.TemporaryDirectory() as folder:
    answers = horovod.run(
        elastic_training, (keep_going, folder, 0.5), np=3, min_np=1, hosts=HOSTS,
        cooldown_range=(5, 10),
    )  # fmt: skip
print("ranks of each epoch:", [size for _, size in answers[0][1]])

# %% [markdown]
# ## Summary
#
# | what you see | what it means | the fix |
# |---|---|---|
# | "killed by signal 9", exit code 137 | often: out of memory | smaller batch, more memory |
# | a traceback on one rank, "can't finish" on others | that one rank failed | read its last line first |
# | "has waited for ... s for rank 1" | rank 1 makes another call, or none | all ranks call, one prints |
# | "the ranks disagree on the shape" | models or batches differ | agree on sizes first |
# | accuracy falls to chance, loss is nan | a NaN on one rank became everybody's | agree to skip the step |
# | a checkpoint can't be loaded | several wrote it, or one was killed | rank 0, new name, replace |
# | "127.0.0.1 is left out", "going on with 2 ranks" | an elastic job has lost a host | none, if the loop goes on from its state |
#
# ### If you have time left
#
# 1. In `skips.py`, let rank 1 call `hvd.allreduce(accuracy, name="loss")` instead of nothing. Predict what you see, then try.
# 2. Let rank 0 raise an error in the middle of `train`. Which epochs are lost? How often would you write a checkpoint if an epoch took an hour?
# 3. Resume on *four* ranks. What must change in the batch of each rank if the training is to be the same as before?
# 4. A loss can be finite and a gradient still be infinite. Where would you have to agree then, and what does `optimizer.synchronize()` do for you?
# 5. Catch `horovod.common.exceptions.HorovodInternalError` in a program of your own and write a last checkpoint before the end. What can go wrong with that?
