# %% [markdown]
# # Lab 04: Inside hvdlite
#
# The runtime that serves `horovod.torch` here is small enough to read. This notebook is your guide.
#
# You will be able to
#
# - say what becomes of a call: request, agreement, fusion, collective, handle;
# - explain why ranks may ask in different orders, and what happens if they ask for different things;
# - write a small DistributedOptimizer with hooks and handles;
# - change the fusion threshold and find the difference in the timeline.
#
# **Time**: 60 minutes.
#
# **Before** you begin: labs 02 and 03.
#
# **Without a GPU**: nothing changes. This lab uses two ranks.

# %%
# %load_ext hvdlab
import inspect
from pathlib import Path

import hvdlite
import numpy as np
from hvdlab import engines, style, timeline
from hvdlab.exercise import Check

# %% [markdown]
# ## The house
#
# Each file does one thing. These are the lines of code in each part, without blank lines and
# comments.

# %%
house = Path(hvdlite.__file__).parent


def lines_of_code(file):
    return sum(1 for line in file.read_text().splitlines() if line.strip() and not line.strip().startswith("#"))


parts = {}
for file in house.rglob("*.py"):
    inside = file.relative_to(house)
    part = f"{inside.parts[0]}/" if len(inside.parts) > 1 else "the runtime itself"
    parts[part] = parts.get(part, 0) + lines_of_code(file)
parts = dict(sorted(parts.items(), key=lambda item: item[1]))
fig, (axes,) = style.figure(width=7, height=0.45 * len(parts) + 1.2)
axes.barh(list(parts), list(parts.values()), color=style.COLOURS[0])
style.label(axes, "hvdlite: lines of code by part", "lines (docstrings counted)", "")
style.show(fig, "Lines by part: " + ", ".join(f"{name} {count:,}" for name, count in parts.items()) + ".")

# %% [markdown]
# You know one of the files already. This is the ring of lab 03, as the runtime has it:

# %%
from hvdlite.collectives.ring import RingCollectives

print(inspect.getsource(RingCollectives))

# %% [markdown]
# **Question.** Between the two loops stands `finish(...)`, on one chunk only. What is it for, and
# why there?
#
# <details><summary>Answer</summary>
#
# It makes the mean out of the sum, or scales it. After scatter-reduce each chunk is complete on
# exactly one rank, so each element is divided once, by one rank, and the result travels on.
# </details>

# %% [markdown]
# ## Requests and handles
#
# A call makes a *request*. `allreduce` waits for its result; `allreduce_async_` returns a *handle*
# at once, `poll` says whether it is done, and `synchronize` waits for it.

# %%
ranks = engines.start(2)

# %%
# %%px
import horovod.torch as hvd
import torch

hvd.init()
data = torch.full((3,), float(hvd.rank() + 1))
handle = hvd.allreduce_async_(data, op=hvd.Sum, name="first")
print("done already:", hvd.poll(handle), "| the result:", hvd.synchronize(handle).tolist())

# %% [markdown]
# ## Agreement
#
# In a training, gradients become ready in an order that nobody controls, and it may differ from
# rank to rank. So ranks tell each other what they ask for, by *name*, and what all have asked for
# runs. Here rank 0 and rank 1 ask in opposite orders:

# %%
# %%px
names = ["a", "b", "c"] if hvd.rank() == 0 else ["c", "b", "a"]
handles = {name: hvd.allreduce_async(torch.tensor([1.0]), op=hvd.Sum, name=name) for name in names}
print({name: hvd.synchronize(handle).item() for name, handle in handles.items()})

# %% [markdown] exercise="any-order"
# ## Exercise: any order
# goal: Sum many tensors when every rank has them in an order of its own.
# minutes: 10
# difficulty: 2
# importance: core
#
# Write `sum_all(tensors)`. `tensors` is a dict from names to tensors; all ranks have the same names,
# but in different orders. Return a dict with the sums over all ranks.
# A blocking `allreduce` one by one would hang: rank 0 waits in the first while rank 1 waits in
# another. Try it, if you like, and read what you are told.

# %% solution="any-order"
# %%px
def sum_all(tensors):
    ### BEGIN SOLUTION
    handles = {n: hvd.allreduce_async(t, op=hvd.Sum, name=n) for n, t in tensors.items()}
    return {name: hvd.synchronize(handle) for name, handle in handles.items()}
    ### END SOLUTION


# %% check="any-order" points=3
with Check("any order") as check:
    ranks.push(sums=None)
    ranks.run(
        "import random\n"
        "order = [f'layer{k}' for k in range(12)]\n"
        "random.Random(hvd.rank()).shuffle(order)\n"
        "found = sum_all({n: torch.full((2,), float(n[5:]) + hvd.rank()) for n in order})\n"
        "sums = found and {n: t.tolist() for n, t in found.items()}",
        limit=15,
    )
    sums = check.value(ranks.pull("sums"), "sum_all(), or it did not come to its end")
    wanted = {f"layer{k}": [2.0 * k + 1] * 2 for k in range(12)}
    check.that(
        all(one == wanted for one in sums),
        "all ranks have the sums of all layers",
        f"Rank 0 has {dict(list(sorted(sums[0].items()))[:2])} ...",
        "start all of them before you wait for the first; the names say which belong together.",
    )

# %% [markdown]
# What if they ask for something different under the same name? Then nothing can be added up, and
# all ranks are told the same. They stay in step.

# %% tags=["raises-exception"]
# %%px
hvd.allreduce(torch.ones(3 + hvd.rank()), name="gradient of conv1")

# %%
# %%px
print("still in step:", hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item())

# %% [markdown]
# ## Hooks: talk while you compute
#
# The backward pass makes the gradient of the *last* layer first. It can travel while those of the
# layers before it are still being computed. PyTorch calls a *hook* when a gradient is ready:

# %%
# %%px
def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def tell(name):
    def hook(parameter):
        if hvd.rank() == 0:
            print("ready:", name, tuple(parameter.grad.shape))

    return hook


model = new_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the first one takes PyTorch some seconds
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(tell(name))
model(torch.ones(2, 8)).sum().backward()

# %% [markdown] exercise="hooks"
# ## Exercise: a DistributedOptimizer of your own
# goal: Average all gradients with hooks and handles.
# minutes: 15
# difficulty: 3
# importance: core
#
# Write `average_gradients(model)`. It registers a hook on each parameter that starts the allreduce of
# its gradient, in place and with the parameter's name. It returns a function that waits for all of
# them; the training calls it between `backward()` and `step()`.

# %% solution="hooks"
# %%px
def average_gradients(model):
    handles = []
    ### BEGIN SOLUTION
    def start(name):
        return lambda p: handles.append(hvd.allreduce_async_(p.grad, name=name))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(start(name))

    def wait():
        while handles:
            hvd.synchronize(handles.pop())

    return wait
    ### END SOLUTION


# %% check="hooks" points=4
TRAIN = """
def train(distributed):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        wait = lambda: None
    else:
        wait = average_gradients(model)
    if wait is None or wait is ...:
        return None
    for step in range(3):
        batch = torch.full((2, 8), 1.0 + hvd.rank() + step)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        wait()
        optimizer.step()
    return [p.detach().numpy().copy() for p in model.parameters()]

yours, theirs = train(False), train(True)
"""
with Check("a DistributedOptimizer of your own") as check:
    ranks.push(yours=None, theirs=None)
    ranks.run(TRAIN, limit=60)
    yours, theirs = ranks.pull("yours"), ranks.pull("theirs")
    check.value(yours, "average_gradients(), or it did not come to its end")
    check.that(
        all(np.allclose(a, b) for a, b in zip(yours[0], yours[1])),
        "after 3 steps all ranks have the same weights",
        "They differ.",
        "does every gradient have its hook, and do you wait for all of them in every step?",
    )
    apart = max(float(np.abs(a - b).max()) for a, b in zip(yours[0], theirs[0]))
    check.that(
        apart < 1e-6,
        "they are those that hvd.DistributedOptimizer gives",
        f"They are up to {apart:.2g} apart.",
        "the mean, not the sum; and in place, so that the optimizer sees it.",
    )

# %%
engines.stop()

# %% [markdown]
# ## Fusion
#
# A collective has a fixed price, however small the tensor. So calls that were agreed on together
# are packed one behind the other into one buffer, up to `HOROVOD_FUSION_THRESHOLD` bytes. This is
# how the runtime decides which calls share one collective:

# %%
from hvdlite.engine import fusion

print(inspect.getsource(fusion.plan))

# %% [markdown]
# 60 small gradients of 4 KiB each, summed on two ranks: all of them started, then waited for.
# The function notes the time of each repeat, and writes a timeline of the last one.


# %%
import os

import horovod
from hvdlab.timing import compare, slowest


def many_gradients(file, count=60, repeats=9):
    import time

    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    gradients = [torch.ones(1024) for _ in range(count)]
    times = []
    for repeat in range(repeats + 1):
        hvd.barrier()
        if repeat == repeats:
            hvd.start_timeline(file)
        start = time.perf_counter()
        handles = [hvd.allreduce_async_(g, name=f"gradient {n}") for n, g in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)
        times.append(time.perf_counter() - start)
    hvd.stop_timeline()
    return times[1:-1]


def run_with(threshold, file):
    """The times with this fusion threshold (bytes), and how many collectives the last repeat took."""
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(threshold)
    try:
        took = slowest(horovod.run(many_gradients, (file,), np=2))
    finally:
        del os.environ["HOROVOD_FUSION_THRESHOLD"]
    phases = timeline.load(file).phases()
    return took, next(p.calls for p in phases if p.name.endswith("_ALLREDUCE") and "NEGOTIATE" not in p.name)


# %% [markdown] exercise="predict-fusion"
# ## Exercise: predict what fusion is worth
# goal: Guess how many times longer 60 collectives take than one that carries all.
# minutes: 3
# difficulty: 1
# importance: useful

# %% solution="predict-fusion"
guess = None  # times as long without fusion
### BEGIN SOLUTION
guess = 10
### END SOLUTION

# %% check="predict-fusion" points=1
from hvdlab.predict import predict

prediction = predict("without fusion", guess, "times", "How many times as long do 60 small tensors take without fusion?")
with Check("predict what fusion is worth") as check:
    check.value(guess, "your guess")
    check.that(guess > 0, "a ratio is a number above 0", f"You wrote {guess!r}.")

# %%
import tempfile

folder = Path(tempfile.mkdtemp())
alone, calls_alone = run_with(0, str(folder / "alone.json"))
fused, calls_fused = run_with(64 << 20, str(folder / "fused.json"))
print(f"threshold 0: {calls_alone} collectives; threshold 64 MiB: {calls_fused}")
print(compare(alone, fused, "without fusion", "with fusion"))
prediction.reveal(alone.middle / fused.middle)

# %% [markdown]
# In the timeline each tensor has a row. Without fusion the collectives stand one behind the other;
# with it, all tensors are copied into one buffer, reduced in the same moment, and copied back.
# Small tensors are copied before the ranks have agreed, so that no time is lost.

# %%
timeline.show(folder / "alone.json", title="Without fusion", tensors="gradient 1")

# %%
timeline.show(folder / "fused.json", title="With fusion", tensors="gradient 1")

# %% [markdown] exercise="threshold"
# ## Exercise: four collectives
# goal: Choose a threshold with your head, then see whether it does what you meant.
# minutes: 6
# difficulty: 2
# importance: useful
#
# Find a fusion threshold (bytes) with which the 60 gradients of 4 KiB travel in exactly 4
# collectives.

# %% solution="threshold"
threshold = None
### BEGIN SOLUTION
threshold = 15 * 4096
### END SOLUTION

# %% check="threshold" points=2
with Check("four collectives") as check:
    check.value(threshold, "threshold")
    _, calls = run_with(int(threshold), str(folder / "mine.json"))
    check.that(
        calls == 4,
        "60 gradients travel in 4 collectives",
        f"With {threshold:,} bytes they took {calls}.",
        "how many gradients of 4,096 bytes must fit into one buffer?",
    )

# %% [markdown]
# ## Summary
#
# - request, agreement, fusion, collective, handle: that is the way of every call.
# - Ranks agree by name; the order doesn't matter, the content does.
# - Hooks start the exchange of a gradient while the backward pass goes on.
# - Many small collectives are slow; fusion makes few large ones of them.
#
# ### If you have time left
#
# 1. Set `HVDLITE_ALLREDUCE` to `ring`, `ps` and `mpi` in `run_with`, and measure large tensors.
#    Which names do you find in the timeline?
# 2. Read `hvdlite/engine/agreement.py`. What do ranks exchange when all ask for the same, and what when
#    they don't?
# 3. Your DistributedOptimizer sends each gradient by itself. Collect some of them in one buffer
#    first (`torch.cat`), and compare the number of collectives in the timeline.
