# %% [markdown]
# # Lab 05: Fashion-MNIST in Keras
#
# You take a Keras script that trains in one process and convert it, step by step, until it trains in as many processes as you like.
#
# You will be able to
#
# - convert a script with `model.fit` by a wrapped optimizer and a few callbacks, and say why each of them is there;
# - see from what the ranks did whether a step is right;
# - compare one process with several, and say what the comparison allows.
#
# **Time**: 60 minutes.
#
# **Before** you begin: lab 01.
#
# **Without a GPU**: nothing changes. With GPUs each process takes one of its own, and the comparison uses them all.

# %%
# %load_ext hvdlab
import os

from hvdlab import conversion
from hvdlab.exercise import Check
from hvdlab.predict import predict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow tells of errors only
script = conversion.begin("fashion_mnist_keras.py", "work/my_keras.py")
print(f"Your script is {script.path}, a copy of scripts/{script.name}")

# %% [markdown]
# ## What you start from
#
# A clean training script for one process: it reads Fashion-MNIST, trains a small convolutional network with `model.fit`, and has callbacks that report each epoch, write a checkpoint, and stop when the accuracy is good enough.
# Train one epoch on a part of the data, to see it work.
# Lines that begin with `I0000`, `W0000` or `E0000` are TensorFlow's own: it looks for a GPU, and without one they mean nothing.

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
# Import `horovod.keras` as `hvd`, and call its `init()`. Both can stand right here, at the top of the script.

# %% solution="init"
# %%step 1
import keras
### BEGIN SOLUTION
import horovod.keras as hvd

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
# TensorFlow takes *all* GPUs that it sees, and all of their memory. With two processes the second one finds nothing left.
# `tf.config.set_visible_devices(gpus[number], "GPU")` lets this process see one only; the numbers begin at 0 *on each host*.
# Which of Horovod's numbers is that: `rank()` or `local_rank()`? Without a GPU the list `gpus` is empty.
#
# The check pretends GPUs, and has each rank run on a host of its own first, then both on one. It needs none of this.

# %% solution="device"
# %%step 2
gpus = [] if args.no_cuda else tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[:1], "GPU")
### BEGIN SOLUTION
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
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
# This is the heart of it. `hvd.DistributedOptimizer(optimizer)` returns an optimizer that uses the mean of all ranks' gradients.
# It must be wrapped before `model.compile` gets it, and that is where this place is.

# %% solution="optimizer"
# %%step 4
### BEGIN SOLUTION
optimizer = hvd.DistributedOptimizer(optimizer)
### END SOLUTION

# %% check="optimizer" points=2
with Check("step 4: average the gradients") as check:
    check.value(script.written("4"), "step 4")
    conversion.judge(check, script, "optimizer")

# %% [markdown] exercise="same-start"
# ## Step 5: the same start
# goal: Let all ranks go on with the weights of rank 0.
# minutes: 4
# difficulty: 2
# importance: core
#
# Equal steps from different starts lead to different places, and no error tells you. This is what it looks like (equal weights have equal digests):

# %%
if script.written("4"):
    for rank, one in enumerate(conversion.observe(script)):
        first, *_, last = one.phase(0).steps
        print(f"rank {rank}: digest of the weights {first.after} after the first step, {last.after} after the last")

# %% [markdown]
# With `model.fit` the training is Keras's business, and yours are the callbacks. There is one that gives all ranks the weights and the optimizer's state of rank 0:
# `hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)`.
# It does so *after* the first batch, since an optimizer has no state before that.
# Put it into the list `callbacks`, before all others: `callbacks.insert(0, ...)`.

# %% solution="same-start"
# %%step 5
### BEGIN SOLUTION
callbacks.insert(0, hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0))
### END SOLUTION

# %% check="same-start" points=2
with Check("step 5: the same start") as check:
    check.value(script.written("5"), "step 5")
    conversion.judge(check, script, "broadcast")

# %% [markdown] exercise="data"
# ## Step 6: share the data
# goal: Let each rank read its own part of the images, and as many as the others do.
# minutes: 8
# difficulty: 2
# importance: core
#
# So far both ranks read everything: twice the work, for nothing.
# Let each rank take every N-th image, beginning at its own number: `slice(hvd.rank(), count, hvd.size())` for `train_images` and `train_labels`, and the same with `None` in the place of `count` for `test_images` and `test_labels`.
#
# All ranks must take the same number of steps, or one of them waits for others that have finished. So let `count` be the largest multiple of N that is not above the number of training images.
#
# *Where the images come from a generator that draws at random from all of them*, there is nothing to slice. Then each rank takes 1/N of the steps, `steps_per_epoch=steps // hvd.size()`, and 3/N of the validation steps, so that few test images are missed by chance.

# %% solution="data"
# %%step 6
count = len(train_images)
### BEGIN SOLUTION
count = len(train_images) // hvd.size() * hvd.size()
mine = slice(hvd.rank(), count, hvd.size())
train_images, train_labels = train_images[mine], train_labels[mine]
mine = slice(hvd.rank(), None, hvd.size())
test_images, test_labels = test_images[mine], test_labels[mine]
### END SOLUTION

# %% check="data" points=3
with Check("step 6: share the data") as check:
    check.value(script.written("6"), "step 6")
    conversion.judge(check, script, "shard")
    conversion.judge(check, script, "shard", arguments=["--limit=225"])

# %% [markdown] exercise="output"
# ## Step 7: one rank speaks and writes
# goal: Let rank 0 alone print, log and write checkpoints.
# minutes: 4
# difficulty: 1
# importance: core
#
# All ranks hold the same model. If all of them write it to the same file at the same time, nobody knows what is in it afterwards.
# Set `speaks` so that it is true on rank 0 only. (`model.fit` has `verbose=0` here; with a progress bar you would write `verbose=1 if speaks else 0`.)

# %% solution="output"
# %%step 7
speaks = True
### BEGIN SOLUTION
speaks = hvd.rank() == 0
### END SOLUTION
if speaks:
    callbacks.append(Report(EpochLog(args.log_dir, done=first_epoch, **facts)))
    if args.log_dir:
        callbacks.append(SaveCheckpoint(args.log_dir))

# %% check="output" points=2
with Check("step 7: one rank speaks and writes") as check:
    check.value(script.written("7"), "step 7")
    conversion.judge(check, script, "rank0")

# %% [markdown]
# **Question.** Could `BroadcastGlobalVariablesCallback` be among the callbacks of rank 0 only?
#
# <details><summary>Answer</summary>
#
# No. A broadcast is something that all ranks do together: one gives, the others take. If only rank 0 calls it, it waits for ever. Only what a rank does for itself, such as printing and writing, may be left to one.
# </details>

# %% [markdown] exercise="resume"
# ## Step 8: resume together
# goal: Find the epoch to go on from on rank 0, and tell the others.
# minutes: 8
# difficulty: 3
# importance: useful
#
# Since step 7 only rank 0 is sure to have the checkpoint: on another machine the file is not there.
# A rank that looks for itself may begin with another epoch than the others, and then the ranks wait for each other at the end.
#
# 1. Set `decides` so that only rank 0 looks, and let `load` be `hvd.load_model`, which wraps the loaded optimizer again.
# 2. Give `first_epoch` of rank 0 to all: `hvd.broadcast_object(first_epoch, root_rank=0)`.
# 3. If it isn't 0, do the same with the weights, `model.get_weights()` and `model.set_weights(...)`: the broadcast of step 5 comes only after the first batch.

# %% solution="resume"
# %%step 8
decides, load = True, keras.models.load_model
### BEGIN SOLUTION
decides, load = hvd.rank() == 0, hvd.load_model
### END SOLUTION
if decides and args.resume and checkpoints:
    model = load(checkpoints[-1])
    first_epoch = int(checkpoints[-1].stem.removeprefix("checkpoint-"))
elif decides:
    for old in checkpoints:
        old.unlink()
### BEGIN SOLUTION
first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
if first_epoch:
    model.set_weights(hvd.broadcast_object(model.get_weights(), root_rank=0))
### END SOLUTION

# %% check="resume" points=2
with Check("step 8: resume together") as check:
    check.value(script.written("8"), "step 8")
    conversion.judge(check, script, "resume", "broadcast")

# %% [markdown] exercise="metrics"
# ## Step 9: one result for all
# goal: Let all callbacks see the mean over the ranks.
# minutes: 4
# difficulty: 1
# importance: core
#
# Each rank has the loss and the accuracy of its own images. What counts is the mean, and all ranks must know it: those that stop at a certain accuracy must stop together.
# `hvd.callbacks.MetricAverageCallback()` puts the mean in the place of the rank's own values. It must come before the callbacks that read them.

# %% solution="metrics"
# %%step 9
### BEGIN SOLUTION
callbacks.insert(0, hvd.callbacks.MetricAverageCallback())
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
# `hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs)` begins with the rate of one process and lets it grow to `rate`.
# Keras's own `LearningRateScheduler` would set it back at each epoch. In its place take
# `hvd.callbacks.LearningRateScheduleCallback(rate, lambda epoch: decay(args, epoch), start_epoch=args.warmup_epochs)`.
# Let `schedule` be the list of these two.

# %% solution="warm-up"
# %%step 10
schedule = [keras.callbacks.LearningRateScheduler(lambda epoch: rate * decay(args, epoch))]
### BEGIN SOLUTION
schedule = [
    hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs),
    hvd.callbacks.LearningRateScheduleCallback(
        rate, lambda epoch: decay(args, epoch), start_epoch=args.warmup_epochs
    ),
]
### END SOLUTION
callbacks = [*schedule, StopAtAccuracy(args.target_accuracy, args.patience)]

# %% check="warm-up" points=2
with Check("step 10: warm up") as check:
    check.value(script.written("10"), "step 10")
    conversion.judge(check, script, "schedule")

# %% [markdown] exercise="threads"
# ## Step 11: share the cores
# goal: Give each process its share of the cores.
# minutes: 4
# difficulty: 1
# importance: useful
#
# TensorFlow takes all cores by default, in every process. Two processes that each want all of them get into each other's way.
# The machine has `len(os.sched_getaffinity(0))` cores for you, and `hvd.local_size()` processes share them. A share is a whole number, and at least 1. (The check pretends a machine with 8.)
# What the user asks for with `--threads` goes first.

# %% solution="threads"
# %%step 11
threads = args.threads or len(os.sched_getaffinity(0))
### BEGIN SOLUTION
threads = args.threads or max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
### END SOLUTION

# %% check="threads" points=1
with Check("step 11: share the cores") as check:
    check.value(script.written("11"), "step 11")
    conversion.judge(check, script, "threads")

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
prediction = predict("speed-up in Keras", guess, "times", question)
with Check("how much faster?") as check:
    check.value(guess, "your guess")
    check.that(guess > 0, "it is a number above 0", f"You wrote {guess!r}.")

# %% [markdown]
# `hvdlab compare` runs your script with each number of processes, several epochs each, leaves the first one out as a warm-up, and repeats what is too noisy.
# On the command line it is `hvdlab compare work/my_keras.py --np 1,2`. Without a converted script, the course's solution is measured.

# %%
result = conversion.measure(script, images=640)

# %%
conversion.draw(result)

# %%
prediction.reveal(conversion.speed_up(result))

# %% [markdown]
# **Question.** The table has two runs with one process. Which one is the fair comparison?
#
# <details><summary>Answer</summary>
#
# It depends on the question. "Does the communication cost much?" wants one process with as many threads as each of the two has. "Do I gain anything on this machine?" wants the best that one process can do, with all cores. On GPUs the two are the same.
# </details>

# %% [markdown]
# **Question.** The right picture shows the accuracy. Are two processes worse than one?
#
# <details><summary>Answer</summary>
#
# This doesn't tell. Two processes took half as many steps an epoch, each with twice the images, and after so few steps on so few images both curves jump. Compare longer trainings on all images, as lab 09 does.
# </details>

# %% [markdown]
# ## The last word
#
# `hvdlab check` runs the whole script on two ranks and judges every step from what they did. It works on scripts from outside the course as well: `hvdlab check --advise mine.py`.

# %%
# !hvdlab check 05 {script.path}

# %% [markdown]
# ## Summary
#
# - Initialize; a GPU, a share of the cores and a share of the images for each rank.
# - A wrapped optimizer averages the gradients; the broadcast callback makes the ranks equal, and then they stay so.
# - N times the learning rate, reached through a warm-up; the metrics are means, so that all ranks decide alike.
# - What all need is called by all; what one does for itself (print, write, look for a file) is done by rank 0, and the others are told.
#
# ### If you have time left
#
# 1. Convert `scripts/mnist_keras.py` in the editor, without places to fill in, and let `hvdlab check 05` judge it.
# 2. Add a `keras.callbacks.EarlyStopping` to your script. On which ranks must it be? What would happen without step 9?
# 3. `!hvdlab sabotage {script.solution} --out work/sabotaged.py` puts one mistake into a copy of a working script, without saying which. Find it, from what `hvdlab check` and the curves show; `--reveal` tells it.
# 4. The log of your script (`--log-dir`) still says `"processes": 1`, and the learning rate of one process. Find the place, and put it right.
# 5. Curves: `!pip install tensorboard`, then run your script on two ranks with `--tensorboard work/curves`, and look at them with `tensorboard --logdir work/curves`. How many files are in that folder, and why? Let rank 0 alone write.
