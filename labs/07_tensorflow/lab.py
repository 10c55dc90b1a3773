# %% [markdown]
# # Lab 07: MNIST in TensorFlow
#
# The same conversion without `model.fit`: a training loop of your own in TensorFlow 2, and the graphs and sessions of TensorFlow 1, which many programs still have. And a question that every CPU node asks: how many threads?
#
# You will be able to
#
# - convert a loop with `GradientTape`;
# - convert a program for TensorFlow 1: session, hooks, graph;
# - choose the number of threads of a process, and tell intra-op from inter-op ones.
#
# **Time**: 60 minutes.
#
# **Before** you begin: lab 05.
#
# **Without a GPU**: nothing changes. The part on threads is made for CPUs.

# %%
# %load_ext hvdlab
import os

from hvdlab import conversion
from hvdlab.exercise import Check
from hvdlab.predict import predict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow tells of errors only
script = conversion.begin("mnist_tensorflow.py", "work/my_tensorflow.py")
print(f"Your script is {script.path}, a copy of scripts/{script.name}")

# %% [markdown]
# ## What you start from
#
# As in lab 05 your copy has a place for each step, and a cell with `%%step N` writes what it holds to it.
# Lines that begin with `I0000`, `W0000` or `E0000` are TensorFlow's own: it looks for a GPU, and without one they mean nothing.
#
# These two functions and the loop that calls them are all of the training:

# %%
# !sed -n '/^def learning_rate/,/return loss/p; /for epoch in range/,/loss = /p' {script.path}

# %% [markdown] exercise="start"
# ## Steps 1, 2 and 11: who am I, and what is mine?
# goal: Initialize; take one GPU and your share of the cores.
# minutes: 6
# difficulty: 1
# importance: core
#
# Three places. At the top: `import horovod.tensorflow as hvd` and its `init()`.
# Then the GPU: this process sees only number `hvd.local_rank()` of the list, if there is any.
# Then the threads: what `--threads` says, or the cores divided by `hvd.local_size()`, at least 1.

# %% solution="start"
# %%step 1
import tensorflow as tf
### BEGIN SOLUTION
import horovod.tensorflow as hvd

hvd.init()
### END SOLUTION

# %% solution="start"
# %%step 2
gpus = [] if args.no_cuda else tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[:1], "GPU")
### BEGIN SOLUTION
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
### END SOLUTION

# %% solution="start"
# %%step 11
threads = args.threads or len(os.sched_getaffinity(0))
### BEGIN SOLUTION
threads = args.threads or max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
### END SOLUTION

# %% check="start" points=2
with Check("steps 1, 2 and 11") as check:
    check.value(script.written("1", "2", "11"), "one of the three steps")
    conversion.judge(check, script, "init", "device", "threads")

# %% [markdown] exercise="rate"
# ## Steps 3 and 10: the learning rate and its warm-up
# goal: Let the rate grow from that of one process to N times as much.
# minutes: 6
# difficulty: 2
# importance: core
#
# The loop asks this function for the rate of each step; `progress` is in epochs.
# Begin with `args.base_lr` and grow evenly to `args.base_lr * hvd.size()` at `args.warmup_epochs`. If that is 0, there is no warm-up.

# %% solution="rate"
# %%step 3
rate = args.base_lr
### BEGIN SOLUTION
warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0
rate = args.base_lr * (1 + (hvd.size() - 1) * warm)
### END SOLUTION
return rate

# %% check="rate" points=2
with Check("steps 3 and 10: the learning rate") as check:
    check.value(script.written("3"), "step 3")
    conversion.judge(check, script, "rate", "schedule")

# %% [markdown] exercise="tape"
# ## Step 4: average the gradients
# goal: Wrap the tape, so that it gives the mean of all ranks' gradients.
# minutes: 4
# difficulty: 1
# importance: core
#
# Here no optimizer is wrapped, but the tape that the gradients come from: `hvd.DistributedGradientTape(tape)`.
# The next line of the script asks `tape` for the gradients.

# %% solution="tape"
# %%step 4
### BEGIN SOLUTION
tape = hvd.DistributedGradientTape(tape)
### END SOLUTION

# %% check="tape" points=2
with Check("step 4: average the gradients") as check:
    check.value(script.written("4"), "step 4")
    conversion.judge(check, script, "optimizer")

# %% [markdown] exercise="same-start"
# ## Step 5: the same start
# goal: Give all ranks the variables of rank 0, once.
# minutes: 6
# difficulty: 2
# importance: core
#
# `hvd.broadcast_variables(model.variables, root_rank=0)` does it, and the optimizer has variables, too: `optimizer.variables`.
# Adam makes them in the first step, so before it there is nothing to send. Do both *after* the first step of the first epoch: `epoch == first_epoch and step == 0`.

# %% solution="same-start"
# %%step 5
total += train_step(model, optimizer, images, labels)
### BEGIN SOLUTION
if epoch == first_epoch and step == 0:
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
### END SOLUTION

# %% check="same-start" points=2
with Check("step 5: the same start") as check:
    check.value(script.written("5"), "step 5")
    conversion.judge(check, script, "broadcast")

# %% [markdown] exercise="data"
# ## Step 6: share the data
# goal: Give each rank its own part of the stream of images, and 1/N of the steps.
# minutes: 6
# difficulty: 2
# importance: core
#
# `dataset.shard(N, number)` keeps every N-th element. All ranks shuffle with the same seed, so the parts stay apart, if you shard *after* the shuffling (which is above this place) and *before* the images are put into batches.
# `shares` is how many ranks share the steps. The test images are arrays: slice them, from `hvd.rank()` in strides of `hvd.size()`.

# %% solution="data"
# %%step 6
### BEGIN SOLUTION
train_set = train_set.shard(hvd.size(), hvd.rank())
### END SOLUTION
train_set = train_set.batch(args.batch_size)
shares = 1
### BEGIN SOLUTION
shares = hvd.size()
mine = slice(hvd.rank(), None, hvd.size())
test_images, test_labels = test_images[mine], test_labels[mine]
### END SOLUTION
steps = max(1, len(train_images) // (args.batch_size * shares))

# %% check="data" points=3
with Check("step 6: share the data") as check:
    check.value(script.written("6"), "step 6")
    conversion.judge(check, script, "shard")

# %% [markdown] exercise="output"
# ## Steps 7 and 9: one rank speaks, and says the mean
# goal: Average loss and accuracy over the ranks; print and write on rank 0 only.
# minutes: 6
# difficulty: 2
# importance: core
#
# `hvd.allreduce(tf.constant([loss, accuracy]), name="metrics")` is the mean; `.numpy().tolist()` makes numbers of it. All ranks must call it.
# The log gets a folder on rank 0, and None elsewhere. And `speaks` is true on rank 0 only.

# %% solution="output"
# %%step 9
accuracy = evaluate(model, test_set, len(test_images))
### BEGIN SOLUTION
loss, accuracy = hvd.allreduce(tf.constant([loss, accuracy]), name="metrics").numpy().tolist()
### END SOLUTION

# %% solution="output"
# %%step 7-log
log_folder = args.log_dir
### BEGIN SOLUTION
log_folder = args.log_dir if hvd.rank() == 0 else None
### END SOLUTION
log = EpochLog(log_folder, done=first_epoch, **facts)

# %% solution="output"
# %%step 7
speaks = True
### BEGIN SOLUTION
speaks = hvd.rank() == 0
### END SOLUTION
if speaks:
    log.add(epoch + 1, seconds, loss, accuracy)
    if manager:
        epochs_done.assign(epoch + 1)
        manager.save()

# %% check="output" points=3
with Check("steps 7 and 9: one rank speaks, and says the mean") as check:
    check.value(script.written("9", "7", "7-log"), "one of the two steps")
    conversion.judge(check, script, "rank0", "metrics")

# %% [markdown] exercise="resume"
# ## Step 8: resume together
# goal: Let rank 0 find the checkpoint, and give its epoch and its weights to the others.
# minutes: 5
# difficulty: 2
# importance: useful
#
# Only rank 0 looks (`decides`). Then `first_epoch` goes to all with `hvd.broadcast_object(first_epoch, root_rank=0)`, and if it isn't 0, so do the model's variables.

# %% solution="resume"
# %%step 8
decides = True
### BEGIN SOLUTION
decides = hvd.rank() == 0
### END SOLUTION
if decides and args.resume and manager and manager.latest_checkpoint:
    optimizer.build(model.trainable_variables)
    checkpoint.restore(manager.latest_checkpoint)
    first_epoch = int(epochs_done)
### BEGIN SOLUTION
first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
if first_epoch:
    hvd.broadcast_variables(model.variables, root_rank=0)
### END SOLUTION

# %% check="resume" points=2
with Check("step 8: resume together") as check:
    check.value(script.written("8"), "step 8")
    conversion.judge(check, script, "resume", "broadcast")

# %%
# !horovodrun -np 2 python {script.path} --epochs 1 --limit 2000

# %% [markdown]
# ## How many threads?
#
# TensorFlow has two kinds. *Intra-op* threads work together in one operation, such as a convolution. *Inter-op* threads run operations side by side that don't need each other; a chain of layers has few of those, so 1 or 2 are enough.
# `tf.config.threading` sets both, and so do `TF_NUM_INTRAOP_THREADS` and `TF_NUM_INTEROP_THREADS` in the environment. `OMP_NUM_THREADS` is the number for libraries with OpenMP inside, such as PyTorch and NumPy's, and programs read it as "my share of the cores": the one for TensorFlow 1 below does.
#
# N processes with T threads each want N x T cores.

# %% [markdown] exercise="threads"
# ## Exercise: too many threads
# goal: Predict what happens when each of two processes takes all cores.
# minutes: 4
# difficulty: 2
# importance: core
#
# Two processes with their share of the cores each are the right thing. How many times as fast are two processes with *all* cores each? Above 1 is faster, below 1 slower.

# %% solution="threads"
guess = None
### BEGIN SOLUTION
guess = 0.8
### END SOLUTION

# %% check="threads" points=1
question = "How many times as fast are two processes with all cores each, compared with a share each?"
prediction = predict("all cores for each", guess, "times", question)
with Check("too many threads") as check:
    check.value(guess, "your guess")
    check.that(guess > 0, "it is a number above 0", f"You wrote {guess!r}.")

# %%
result = conversion.measure(script, images=4000, np=[1, 2], options=["--no-cuda"])

# %%
crowded = conversion.crowded(result)
conversion.draw_speeds("MNIST in TensorFlow", [*result.runs, crowded])

# %%
prediction.reveal(crowded.rate.middle / result.largest.rate.middle)

# %% [markdown]
# If the black lines of two rows overlap, this measurement doesn't tell them apart.
# The learning rate that was printed is what your script's log says, still that of one process; number 4 at the end of this lab puts it right.
#
# **Question.** On a node with 2 processors of 32 cores each and 4 GPUs you start 4 ranks. How many intra-op threads would you give each, and what else needs cores?
#
# <details><summary>Answer</summary>
#
# At most 16 each, so that all four together have 64. The work is done on the GPUs; the cores read and prepare images, so the threads that load data want them, too. Measure with fewer: beyond some number more threads bring nothing.
# </details>

# %% [markdown]
# ## The TensorFlow 1 form
#
# Programs from before 2019 describe a *graph* first, with placeholders for the data, and then run it in a *session*. `tf.compat.v1` still can, and so can Horovod.
# What was a callback is a *hook* of `MonitoredTrainingSession` here, and what was `set_visible_devices` is part of the session's configuration.

# %%
graph = conversion.begin("mnist_tensorflow1.py", "work/my_tensorflow1.py")

# %% [markdown] exercise="graph"
# ## Exercise: session, optimizer, hook
# goal: Convert what makes the ranks train together in a program for TensorFlow 1.
# minutes: 8
# difficulty: 2
# importance: useful
#
# 1. Import and initialize, as ever.
# 2. The session sees one GPU: `config.gpu_options.visible_device_list = str(...)`.
# 3. The rate times N, and `hvd.DistributedOptimizer(optimizer)` around the optimizer.
# 4. Append `hvd.BroadcastGlobalVariablesHook(root_rank=0)` to the list `hooks`: it broadcasts when the session has made the variables.

# %% solution="graph"
# %%step 1
import tensorflow.compat.v1 as tf
### BEGIN SOLUTION
import horovod.tensorflow as hvd

hvd.init()
### END SOLUTION

# %% solution="graph"
# %%step 2
### BEGIN SOLUTION
config.gpu_options.visible_device_list = str(hvd.local_rank())
### END SOLUTION

# %% solution="graph"
# %%step 4
optimizer = tf.train.AdamOptimizer(rate)
### BEGIN SOLUTION
optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(rate * hvd.size()))
### END SOLUTION

# %% solution="graph"
# %%step 5
### BEGIN SOLUTION
hooks.append(hvd.BroadcastGlobalVariablesHook(root_rank=0))
### END SOLUTION

# %% check="graph" points=3
with Check("session, optimizer, hook") as check:
    check.value(graph.written("1", "2", "4", "5"), "one of the four places")
    conversion.judge(check, graph, "init", "device", "rate", "optimizer", "broadcast")

# %% [markdown] exercise="graph-data"
# ## Exercise: data and output
# goal: Share the images, and write on rank 0 only, in a program for TensorFlow 1.
# minutes: 8
# difficulty: 2
# importance: extra
#
# 1. `shares` ranks share the steps; take of `order`, the shuffled numbers of the images, every N-th, beginning at your rank.
# 2. The session writes checkpoints into `folder`: None on all ranks but 0.
# 3. The log and its line for each epoch are for rank 0 only.

# %% solution="graph-data"
# %%step 6
shares = 1
### BEGIN SOLUTION
shares = hvd.size()
### END SOLUTION
steps = max(1, len(train_images) // (args.batch_size * shares))

# %% solution="graph-data"
# %%step 6-order
order = shuffled(len(train_images), args.seed, epoch)
### BEGIN SOLUTION
order = order[hvd.rank() :: hvd.size()]
### END SOLUTION

# %% solution="graph-data"
# %%step 7
folder = str(args.log_dir / "checkpoints") if args.log_dir else None
### BEGIN SOLUTION
folder = folder if hvd.rank() == 0 else None
### END SOLUTION

# %% solution="graph-data"
# %%step 7-log
speaks = True
### BEGIN SOLUTION
speaks = hvd.rank() == 0
### END SOLUTION
log = EpochLog(args.log_dir if speaks else None, done=done, **facts)
if speaks:
    tf.logging.set_verbosity(tf.logging.INFO)
    hooks.append(tf.train.LoggingTensorHook(watched, every_n_iter=100))

# %% solution="graph-data"
# %%step 7-report
reports = True
### BEGIN SOLUTION
reports = speaks
### END SOLUTION
if reports:
    log.add(epoch + 1, seconds, *metrics)

# %% check="graph-data" points=3
with Check("data and output") as check:
    check.value(graph.written("6", "6-order", "7", "7-log", "7-report"), "one of the five places")
    conversion.judge(check, graph, "shard", "rank0")

# %% [markdown]
# Rank 0 reports its own metrics here, of all test images. The course's solution averages them: `hvd.allreduce` is an operation of the graph, made once, before the session. It also resumes: the session of rank 0 reads its checkpoint, and the hook gives it to the others.

# %%
# !OMP_NUM_THREADS=1 horovodrun -np 2 python {graph.solution} --epochs 1 --limit 2000

# %% [markdown]
# ## The last word

# %%
# !hvdlab check 07 {script.path}

# %% [markdown]
# ## Summary
#
# - With a loop of your own the tape is wrapped, and you broadcast yourself, after the first step.
# - In TensorFlow 1 the session's configuration takes the GPU, a hook broadcasts, the optimizer is wrapped, and only rank 0 has a folder for checkpoints.
# - Intra-op threads share an operation; N processes with T threads each want N x T cores.
# - A measurement with overlapping spreads tells nothing apart.
#
# ### If you have time left
#
# 1. Finish `work/my_tensorflow1.py`: average the metrics, and add a warm-up with `tf.train.get_or_create_global_step()`. `hvdlab check 07 work/my_tensorflow1.py` says what you have.
# 2. In your TensorFlow 2 script, broadcast *before* the first step. What is missing on the other ranks, and when does it show?
# 3. Start 4 processes on your machine, with 1 thread each. Predict the images per second first.
# 4. The log of your script (`--log-dir`) still says `"processes": 1`, and the learning rate of one process. Find the place, and put it right.
