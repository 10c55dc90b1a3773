# %% [markdown]
# # Lab 06: Fashion-MNIST and MNIST in PyTorch
#
# You take a training script that runs in one process and convert it, step by step, until it runs in as many processes as you like.
#
# You will be able to
#
# - convert a PyTorch training loop with Horovod's API, and say why each step is there;
# - see from what the ranks did whether a step is right;
# - compare one process with several, and say what the comparison allows;
# - convert a second script without help.
#
# **Time**: 60 minutes; 12 more for the second script.
#
# **Before** you begin: lab 01.
#
# **Without a GPU**: nothing changes. With GPUs each process takes one of its own, and the comparison uses them all.

# %%
# %load_ext hvdlab
from hvdlab import conversion
from hvdlab.exercise import Check
from hvdlab.predict import predict

script = conversion.begin("fashion_mnist_torch.py", "work/my_torch.py")
print(f"Your script is {script.path}, a copy of scripts/{script.name}")

# %% [markdown]
# ## What you start from
#
# A clean training script for one process: it reads Fashion-MNIST, trains a small convolutional network, reports each epoch and writes a checkpoint.
# Train one epoch on a part of the data, to see it work.

# %%
# !python {script.path} --epochs 1 --limit 1000 --threads 1

# %% [markdown]
# Your copy has a place for each step, between two lines of comment. This is one of them:

# %%
# !grep -n -B 3 -A 3 "step 3" {script.path}

# %% [markdown]
# A cell that begins with `%%step 3` writes what it holds to that place, with the right indentation, and shows what it changes.
# You can run it as often as you like. You can also open the file in JupyterLab and look at the whole.
#
# The checks run your script on two ranks, for a moment and on 256 images.
# Each rank begins with weights of its own, as it would without a seed, and has a folder of its own, as on another machine.
# Then they look at what each rank *did*: which images it read, which weights it had, what it wrote.

# %% [markdown] exercise="init"
# ## Step 1: who am I?
# goal: Import Horovod's API and initialize it.
# minutes: 3
# difficulty: 1
# importance: core
#
# Before anything else each process must learn its number and how many there are.
# Import `horovod.torch` as `hvd`, and call its `init()`. Both can stand right here, at the top of the script.

# %% solution="init"
# %%step 1
import torch
### BEGIN SOLUTION
import horovod.torch as hvd

hvd.init()
### END SOLUTION

# %% check="init" points=1
with Check("step 1: who am I?") as check:
    check.value(script.written("1"), "step 1")
    conversion.judge(check, script, "init")

# %% [markdown] exercise="device"
# ## Step 2: a GPU for each process
# goal: Let each process of a host take a GPU of its own.
# minutes: 5
# difficulty: 2
# importance: core
#
# Two processes on one GPU share its memory and its time, and a GPU beside them rests.
# `torch.cuda.set_device(number)` chooses the GPU of this process; the numbers begin at 0 *on each host*.
# Which of Horovod's numbers is that: `rank()` or `local_rank()`? Do it only where there is a GPU.
#
# The check pretends GPUs, and has each rank run on a host of its own first, then both on one. It needs none of this.

# %% solution="device"
# %%step 2
use_cuda = torch.cuda.is_available() and not args.no_cuda
device = torch.device("cuda" if use_cuda else "cpu")
### BEGIN SOLUTION
if use_cuda:
    torch.cuda.set_device(hvd.local_rank())
### END SOLUTION

# %% check="device" points=2
with Check("step 2: a GPU for each process") as check:
    check.value(script.written("2"), "step 2")
    conversion.judge(check, script, "device")

# %% [markdown] exercise="rate"
# ## Step 3: the learning rate
# goal: Scale the learning rate with the number of processes.
# minutes: 3
# difficulty: 1
# importance: core
#
# With N processes a step averages over N times as many images, and an epoch has 1/N of the steps.
# A step that is N times as long makes up for it (lab 09 shows how far that goes).
# `hvd.size()` is N.

# %% solution="rate"
# %%step 3
rate = args.base_lr
### BEGIN SOLUTION
rate = args.base_lr * hvd.size()
### END SOLUTION

# %% check="rate" points=1
with Check("step 3: the learning rate") as check:
    check.value(script.written("3"), "step 3")
    conversion.judge(check, script, "rate")

# %% [markdown] exercise="optimizer"
# ## Step 4: average the gradients
# goal: Wrap the optimizer, so that all ranks take the same step.
# minutes: 4
# difficulty: 1
# importance: core
#
# This is the heart of it. `hvd.DistributedOptimizer(optimizer, model.named_parameters())` returns an optimizer whose `step()` uses the mean of all ranks' gradients.
# From here on the wrapped one must be used.

# %% solution="optimizer"
# %%step 4
### BEGIN SOLUTION
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
### END SOLUTION

# %% check="optimizer" points=2
with Check("step 4: average the gradients") as check:
    check.value(script.written("4"), "step 4")
    conversion.judge(check, script, "optimizer")

# %% [markdown] exercise="same-start"
# ## Step 5: the same start
# goal: Let all ranks begin with the weights of rank 0.
# minutes: 4
# difficulty: 2
# importance: core
#
# Equal steps from different starts lead to different places, and no error tells you.
# `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` gives all ranks the weights of rank 0, and `hvd.broadcast_optimizer_state(optimizer, root_rank=0)` its momentum.
# Their place is just before the training, after a checkpoint may have been loaded.
#
# First see what happens without them:

# %%
if script.written("4"):
    for rank, one in enumerate(conversion.observe(script)):
        first, *_, last = one.phase(0).steps
        print(f"rank {rank}: weights {first.before} before the first step, {last.after} after the last")

# %% solution="same-start"
# %%step 5
### BEGIN SOLUTION
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
### END SOLUTION

# %% check="same-start" points=2
with Check("step 5: the same start") as check:
    check.value(script.written("5"), "step 5")
    conversion.judge(check, script, "broadcast")

# %% [markdown] exercise="data"
# ## Step 6: share the data
# goal: Let each rank read its own part of the images, in a new order in every epoch.
# minutes: 8
# difficulty: 2
# importance: core
#
# So far both ranks read everything: twice the work, for nothing.
# A `DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)` gives each rank its own 1/N; import it from `torch.utils.data`.
# Do the same for the test images, with `shuffle=False`.
#
# The sampler shuffles by its seed and the number of the epoch, so that all ranks shuffle alike and the parts stay apart. It must be told that number: `train_sampler.set_epoch(epoch)`. Without that every epoch has the same order.

# %% solution="data"
# %%step 6
train_sampler = RandomSampler(train_set)
test_sampler = None
### BEGIN SOLUTION
from torch.utils.data import DistributedSampler

train_sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)
test_sampler = DistributedSampler(test_set, hvd.size(), hvd.rank(), shuffle=False)
### END SOLUTION
train_loader = DataLoader(
    train_set, args.batch_size, sampler=train_sampler, collate_fn=ImageDataset.collate
)
test_loader = DataLoader(
    test_set, args.val_batch_size, sampler=test_sampler, collate_fn=ImageDataset.collate
)

# %% solution="data"
# %%step 6-epochs
### BEGIN SOLUTION
train_sampler.set_epoch(epoch)
### END SOLUTION

# %% check="data" points=3
with Check("step 6: share the data") as check:
    check.value(script.written("6", "6-epochs"), "step 6")
    conversion.judge(check, script, "shard")

# %% [markdown] exercise="output"
# ## Step 7: one rank speaks and writes
# goal: Let rank 0 alone print, log and write checkpoints.
# minutes: 4
# difficulty: 1
# importance: core
#
# All ranks hold the same model. If all of them write it to the same file at the same time, nobody knows what is in it afterwards.
# Set `speaks` so that it is true on rank 0 only.

# %% solution="output"
# %%step 7
speaks = True
### BEGIN SOLUTION
speaks = hvd.rank() == 0
### END SOLUTION
if speaks:
    report(args, record)
    if checkpoint:
        save_checkpoint(checkpoint, model, optimizer, epoch + 1)

# %% check="output" points=2
with Check("step 7: one rank speaks and writes") as check:
    check.value(script.written("7"), "step 7")
    conversion.judge(check, script, "rank0")

# %% [markdown]
# **Question.** Could the whole epoch stand below `if hvd.rank() == 0`?
#
# <details><summary>Answer</summary>
#
# No. What all ranks must do together (steps of the optimizer, broadcasts, averages) must be called by all of them, or those who call it wait for ever. Only what a rank does for itself, such as printing and writing, may be left to one.
# </details>

# %% [markdown] exercise="resume"
# ## Step 8: resume together
# goal: Find the epoch to go on from on rank 0, and tell the others.
# minutes: 7
# difficulty: 2
# importance: useful
#
# Since step 7 only rank 0 is sure to have the checkpoint: on another machine the file is not there.
# A rank that looks for itself may begin with another epoch than the others, and then the ranks wait for each other at the end.
# Set `decides` so that only rank 0 looks; then give `first_epoch` of rank 0 to all: `hvd.broadcast_object(first_epoch, root_rank=0)`.
# The weights follow by step 5.

# %% solution="resume"
# %%step 8
decides = True
### BEGIN SOLUTION
decides = hvd.rank() == 0
### END SOLUTION
if decides and args.resume and checkpoint and checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first_epoch = state["epoch"]
if decides and args.log_dir:
    keep_epochs(args.log_dir, first_epoch)
### BEGIN SOLUTION
first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
### END SOLUTION

# %% check="resume" points=2
with Check("step 8: resume together") as check:
    check.value(script.written("8"), "step 8")
    conversion.judge(check, script, "resume", "broadcast")

# %% [markdown] exercise="metrics"
# ## Step 9: one result for all
# goal: Report the mean over the ranks, and let all of them know it.
# minutes: 5
# difficulty: 2
# importance: core
#
# Each rank has the loss and the accuracy of its own images. What counts is the mean.
# `hvd.allreduce(torch.tensor([loss, accuracy]), name="metrics")` is the mean over the ranks; `.tolist()` makes numbers of it.
# *All* ranks must call it, also those that print nothing: it stands before the report, not below `if speaks`.

# %% solution="metrics"
# %%step 9
### BEGIN SOLUTION
loss, accuracy = hvd.allreduce(torch.tensor([loss, accuracy]), name="metrics").tolist()
### END SOLUTION

# %% check="metrics" points=2
with Check("step 9: one result for all") as check:
    check.value(script.written("9"), "step 9")
    conversion.judge(check, script, "metrics")

# %% [markdown] exercise="warm-up"
# ## Step 10: warm up
# goal: Let the learning rate grow to its full size during the first epoch.
# minutes: 6
# difficulty: 2
# importance: useful
#
# At the very beginning the gradients are large and point anywhere, and a step N times as long can throw the model off.
# So begin with the rate of one process, `args.base_lr`, and let it grow evenly to `rate` while `progress` (in epochs) goes from 0 to `args.warmup_epochs`. After that it is `rate`.
# With `--warmup-epochs 0` there is no warm-up: divide by it only if it isn't 0.

# %% solution="warm-up"
# %%step 10
### BEGIN SOLUTION
warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0
rate = args.base_lr + (rate - args.base_lr) * warm
### END SOLUTION

# %% check="warm-up" points=2
with Check("step 10: warm up") as check:
    check.value(script.written("10"), "step 10")
    conversion.judge(check, script, "schedule")
    ### BEGIN HIDDEN TESTS
    cold = conversion.observe(script, "--warmup-epochs=0")[0].phase(0).steps
    check.that(cold and abs(cold[0].lr - 0.02) < 1e-6, "without a warm-up it begins with the full rate")
    ### END HIDDEN TESTS

# %% [markdown] exercise="threads"
# ## Step 11: share the cores
# goal: Give each process its share of the cores.
# minutes: 4
# difficulty: 1
# importance: useful
#
# PyTorch takes all cores by default, in every process. Two processes that each want all of them get into each other's way.
# The machine has `len(os.sched_getaffinity(0))` cores for you, and `hvd.local_size()` processes share them. A share is a whole number, and at least 1. (The check pretends a machine with 8.)
# What the user asks for with `--threads` goes first.

# %% solution="threads"
# %%step 11
threads = args.threads
### BEGIN SOLUTION
threads = args.threads or max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
### END SOLUTION
if threads:
    torch.set_num_threads(threads)

# %% check="threads" points=1
with Check("step 11: share the cores") as check:
    check.value(script.written("11"), "step 11")
    conversion.judge(check, script, "threads")
    asked = [one.threads[-1]["count"] for one in conversion.observe(script, "--threads=1") if one.threads]
    check.that(asked == [1, 1], "--threads 1 gives each of them one", f"They use {asked}.")

# %% [markdown]
# ## The whole program, on one and on several processes
#
# That's it. Look at the whole script once, in the editor, before you run it.
# `horovodrun` starts it on as many processes as you like: `-np 1` must still work.

# %%
# !horovodrun -np 1 python {script.path} --epochs 1 --limit 500

# %%
# !horovodrun -np 2 python {script.path} --epochs 1 --limit 500

# %% [markdown] exercise="predict"
# ## Exercise: how much faster?
# goal: Predict the speed-up before you measure it.
# minutes: 3
# difficulty: 1
# importance: core
#
# How many times as many images per second will the largest number of processes handle, compared with one? Without GPUs the largest number is 2, and the one process has as many threads as each of the two.

# %% solution="predict"
guess = None
### BEGIN SOLUTION
guess = 1.8
### END SOLUTION

# %% check="predict" points=1
question = "How many times as many images per second as with one process?"
prediction = predict("speed-up in PyTorch", guess, "times", question)
with Check("how much faster?") as check:
    check.value(guess, "your guess")
    check.that(guess > 0, "it is a number above 0", f"You wrote {guess!r}.")

# %% [markdown]
# `hvdlab compare` runs your script with each number of processes, several epochs each, leaves the first one out as a warm-up, and repeats what is too noisy.
# On the command line it is `hvdlab compare work/my_torch.py --np 1,2`. Without a converted script, the course's solution is measured.

# %%
result = conversion.measure(script, images=640)

# %%
conversion.draw(result)

# %%
prediction.reveal(conversion.speed_up(result))

# %% [markdown]
# Compare the speeds here, not the accuracies: on the CPU an epoch has only 10 steps, or 5 with two processes. Lab 09 compares accuracies.
# The learning rate in the last lines above is what your script's log says, still that of one process; number 4 at the end of this lab puts it right.
#
# **Question.** Which parts of your script get no faster with more processes?
#
# <details><summary>Answer</summary>
#
# The start (importing PyTorch, reading the data) costs each process the same, at the same time. The allreduce is new, and nobody had to pay for it with one process. Both count less, the longer the training is and the larger the batch of each process.
# </details>

# %% [markdown]
# ## The last word
#
# `hvdlab check` runs the whole script on two ranks and judges every step from what they did. It works on scripts from outside the course as well: `hvdlab check --advise mine.py`.

# %%
# !hvdlab check 06 {script.path}

# %% [markdown] exercise="alone"
# ## Exercise: a second script, alone
# goal: Convert another script without places to fill in.
# minutes: 12
# difficulty: 3
# importance: extra
#
# `work/my_mnist.py` is a copy of `scripts/mnist_torch.py`, as it is: MNIST, another network, Adam, no resume, no warm-up.
# Open it in JupyterLab's editor (double-click in the list on the left) and convert it; then run the check.
# To write it here instead, put `%%writefile work/my_mnist.py` at the top of a new cell.

# %% solution="alone"
mnist = conversion.begin("mnist_torch.py", "work/my_mnist.py")
### BEGIN SOLUTION
mnist.path.write_text(mnist.solution.read_text());
### END SOLUTION

# %% check="alone" points=4
with Check("a second script, alone") as check:
    check.value(True if mnist.is_converted else None, "work/my_mnist.py")
    conversion.judge(
        check, mnist, "init", "device", "rate", "optimizer", "broadcast", "shard", "rank0", "metrics", "threads"
    )

# %% [markdown]
# ## Summary
#
# - Initialize; a GPU, a share of the cores and a share of the images for each rank.
# - The same start (broadcast), the same steps (wrapped optimizer): then the weights stay the same for ever.
# - N times the learning rate, reached through a warm-up.
# - What all need is called by all; what one does for itself (print, write, look for a file) is done by rank 0, and the others are told.
#
# ### If you have time left
#
# 1. `!hvdlab sabotage {script.solution} --out work/sabotaged.py` puts one mistake into a copy of a working script, without saying which. Find it, from what `hvdlab check` and the curves show; `--reveal` tells it.
# 2. Use another number of images, such as `--limit 4001`, with two ranks. What does `DistributedSampler` do about the odd one? What does that mean for the accuracy?
# 3. Leave the batch of all ranks together as it is: `--batch-size 32` on two ranks. Which step must change back, and what becomes of the speed-up?
# 4. The log of your script (`--log-dir`) still says `"processes": 1`, and the learning rate of one process. Find the place, and put it right.
# 5. Curves: `!pip install tensorboard`, then run your script on two ranks with `--tensorboard work/curves`, and look at them with `tensorboard --logdir work/curves`. How many files are in that folder, and why? Let rank 0 alone write.
