# %% [markdown]
# # Lab 09: Scaling
#
# Two ranks are rarely twice as fast as one. This lab measures by how much, says why, and carries the answer to thousands of GPUs.
#
# You will be able to
#
# - measure strong and weak scaling, and say which of the two you mean;
# - fit T = G / W + C(W) to your own measurements, and say how far to trust it;
# - simulate what an algorithm, a network or fp16 changes on thousands of GPUs;
# - explain the published figures: why one network scales to 90 % and another to 68 %;
# - scale the learning rate with the batch, warm it up, and see where large batches cost accuracy.
#
# **Time**: 60 minutes.
#
# **Before** you begin: labs 01, 03 and 06. You know the ring, and what the batch of all ranks together is.
#
# **Without a GPU**: you measure on two cores, and the simulator has the GPUs.

# %%
# %load_ext hvdlab
import horovod
import numpy as np
import torch

from hvdlab import simulate, style
from hvdlab.compare.machine import OtherLoad
from hvdlab.exercise import Check
from hvdlab.simulate import plots
from hvdlab.timing import Timing, compare

# %% [markdown]
# ## Measure: strong and weak
#
# - **Strong scaling**: the work stays the same, and more ranks share it. Here: 64 images a step, so 32 on each of two ranks.
# - **Weak scaling**: the work of each rank stays the same. Here: 64 images a step on each rank.
#
# Each rank has one thread, so that two ranks have twice the cores of one. The first steps warm up and don't count.


# %%
def time_steps(batch_sizes, steps=14):
    """Seconds of each step on this rank, for each batch size a rank."""
    import time

    import horovod.torch as hvd
    import torch
    from torch.nn.functional import cross_entropy

    from hvdlab.models import create_model

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = create_model("cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    found = {}
    for batch in batch_sizes:
        images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        times = []
        for _ in range(steps + 3):
            start = time.perf_counter()
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        found[batch] = times[3:]
    return found


BATCH = 64
load = OtherLoad()
alone = horovod.run(time_steps, args=([BATCH],), np=1)[0][BATCH]
both = horovod.run(time_steps, args=([BATCH, BATCH // 2],), np=2)[0]
weak, strong = both[BATCH], both[BATCH // 2]
runs = {
    "1 rank, 64 images": alone,
    "2 ranks, 32 images each": strong,
    "2 ranks, 64 images each": weak,
}
for name, times in runs.items():
    print(f"{name}: {Timing(tuple(times))} a step")
others = load.share()
print(f"Other programs took {100 * others:.0f} % of the processors meanwhile.")
if others > 0.15:
    print("That is too much for conclusions: close them, and run this cell again.")

# %% [markdown] exercise="efficiency"
# ## Exercise: speed-up and efficiency
# goal: Turn times into the two numbers that everybody quotes.
# minutes: 8
# difficulty: 1
# importance: core
#
# *Speed-up* is how many times the images per second of one rank; *efficiency* is the speed-up divided by the number of ranks.
# Write a function for both kinds of scaling: it gets the time of a step and the images of a step, all ranks together, for one rank and for `ranks` ranks.


# %% solution="efficiency"
def speedup_and_efficiency(seconds_alone, images_alone, seconds, images, ranks):
    ### BEGIN SOLUTION
    speedup = (images / seconds) / (images_alone / seconds_alone)
    return speedup, speedup / ranks
    ### END SOLUTION


# %% check="efficiency" points=3
with Check("speed-up and efficiency") as check:
    perfect = check.value(speedup_and_efficiency(1.0, 64, 0.5, 64, 2), "speedup_and_efficiency()")
    check.that(
        np.allclose(perfect, [2, 1]),
        "strong: half the time with two ranks is a speed-up of 2 and an efficiency of 1",
        f"You get {perfect}.",
    )
    perfect = speedup_and_efficiency(1.0, 64, 1.0, 256, 4)
    check.that(
        np.allclose(perfect, [4, 1]),
        "weak: the same time for four times the images is a speed-up of 4",
        f"You get {perfect}.",
        "compare images per second, not seconds.",
    )
    usual = speedup_and_efficiency(1.0, 64, 0.625, 64, 2)
    check.that(
        np.allclose(usual, [1.6, 0.8]), "1.6 times on two ranks is 80 %", f"You get {usual}."
    )

# %% [markdown]
# And this is what was measured here, with the spread of the steps. A bar tells something about scaling only if the machine had nothing else to do.


# %%
def rate(times, images):
    """Images per second: middle, and how far below and above it the spread goes."""
    timing = Timing(tuple(times))
    middle = images / timing.middle
    return middle, middle - images / timing.high, images / timing.low - middle


rates = [rate(alone, BATCH), rate(strong, BATCH), rate(weak, 2 * BATCH)]
names = ["1 rank", "2 ranks,\nstrong", "2 ranks,\nweak"]
fig, (axes,) = style.figure(width=5.6)
axes.bar(names, [r[0] for r in rates], color=style.COLOURS[:3], width=0.6)
axes.errorbar(
    names,
    [r[0] for r in rates],
    np.array([r[1:] for r in rates]).T,
    fmt="none",
    color=style.INK,
    capsize=4,
)
axes.axhline(2 * rates[0][0], color=style.INK, linestyle="--", linewidth=1, label="twice one rank")
axes.set_ylim(0, 2.6 * rates[0][0])
axes.legend(frameon=False, loc="upper left")
style.label(axes, "Training the small CNN", "", "images per second")
style.show(
    fig,
    f"Images per second with spread: 1 rank {rates[0][0]:.0f}, 2 ranks strong {rates[1][0]:.0f}, "
    f"2 ranks weak {rates[2][0]:.0f}; a dashed line marks twice one rank.",
)
for name, (middle, _, _) in zip(("strong", "weak"), rates[1:]):
    speedup = middle / rates[0][0]
    print(f"{name}: {speedup:.2f} times one rank, efficiency {100 * speedup / 2:.0f} %")
print(compare(Timing(tuple(strong)), Timing(tuple(alone)), "2 ranks sharing a batch", "1 rank"))

# %% [markdown]
# **Question.** Which of the two scales better, and why?
#
# <details><summary>Answer</summary>
#
# The communication of a step costs the same in both: it depends on the model, not on the batch.
# With weak scaling each rank computes longer between two exchanges, so that the same cost weighs less.
# A CPU can turn that round: half the images fit its caches better, so that half a batch takes less than half the time. An efficiency above 100 % is a sign of it.
# On a busy machine, or one whose two cores share one memory bus, the spread can be larger than this difference; then no conclusion can be drawn.
# </details>

# %% [markdown]
# ## Why: T = G / W + C(W)
#
# For strong scaling, the time of a step has two parts: the work G, shared by W ranks, and the communication C(W), which is nobody's to share.
# For a ring, the bytes that each rank sends are 2 (W - 1) / W times the tensor, so C(W) = c × 2 (W - 1) / W: nothing for one rank, c for two, nearly 2 c for many.
#
# `simulate.fit` finds G and c by least squares over all single steps. The repeats give the standard errors.

# %%
workers = [1] * len(alone) + [2] * len(strong)
seconds = [*alone, *strong]
fitted = simulate.fit(workers, seconds, terms=("bytes",))
print(fitted)
if fitted.values[1] == 0:
    print("Two ranks took no longer than half the time of one: here C can't be told from nothing.")

# %% [markdown] exercise="limit"
# ## Exercise: the end of strong scaling
# goal: See from two coefficients how far strong scaling can go.
# minutes: 8
# difficulty: 2
# importance: core
#
# However many ranks there are, T can't become smaller than what C(W) tends to.
# Write the largest possible speed-up for given G and c.


# %% solution="limit"
def largest_speedup(G, c):
    ### BEGIN SOLUTION
    return G / (2 * c)
    ### END SOLUTION


# %% check="limit" points=2
with Check("the end of strong scaling") as check:
    limit = check.value(largest_speedup(1.0, 0.01), "largest_speedup()")
    check.that(
        abs(limit - 50) < 1e-9,
        "1 s of work and c = 10 ms allow a speed-up of 50",
        f"You get {limit}.",
        "for many ranks G / W goes to 0 and 2 (W - 1) / W goes to 2.",
    )
    exact = simulate.fit([1, 2, 4], [1.0, 0.51, 0.265])
    many = exact.predict(1)[0] / exact.predict(10**7)[0]
    check.that(
        abs(largest_speedup(*exact.values) / many - 1) < 0.01,
        "ten million ranks come near it",
        f"They reach {many:.1f}, your limit is {largest_speedup(*exact.values):.1f}.",
    )

# %%
style.show(
    plots.fitted(fitted, workers, seconds, up_to=1024),
    "Time of a step over the number of workers on logarithmic axes: the measurements at 1 and 2, "
    "the fitted curve with its 95 % range, and the ideal line G / W.",
)
for count in (2, 8, 64, 1024):
    middle, margin = fitted.predict(count)[0], fitted.margin(count)[0]
    share = 100 * fitted.efficiency(count)[0]
    print(
        f"{count:>5} ranks: {1e3 * middle:6.2f} ms, give or take {1e3 * margin:.2f} ms; {share:.1f} %"
    )

# %% [markdown]
# The range says how well two points of measurement determine the curve, *if the model is right*.
# It knows nothing of what you have not measured: a network in the place of shared memory, or latencies, which grow with every rank.
# Two measurements can't tell more than two coefficients apart. For more terms, measure more numbers of ranks.

# %% [markdown]
# ## From a model to thousands of GPUs
#
# The simulator starts from the other end: from links with a latency and a bandwidth, and from what the algorithms send.
# Each formula names its source; `simulate.ring?` shows it.

# %%
counts = [2**power for power in range(1, 16)]
for size, words in ((100e6, "100 MB"), (10e3, "10 kB")):
    curves = {
        name: [
            simulate.allreduce(name, size, count, simulate.PUBLISHED_CLUSTER) for count in counts
        ]
        for name in simulate.ALGORITHMS
    }
    style.show(
        plots.costs(curves, counts, f"Allreduce of {words}, 4 GPUs a server, 25 Gbit/s"),
        f"Simulated time of an allreduce of {words} over the number of workers, for ring, tree, "
        "hierarchical and parameter server; the parameter server's time grows with the workers.",
    )

# %% [markdown] exercise="algorithm"
# ## Exercise: choose an algorithm
# goal: Know when latency decides and when bandwidth does.
# minutes: 8
# difficulty: 2
# importance: useful
#
# For each case write the name of the fastest of "ring", "tree", "hierarchical" and "parameter server", in this cluster.
# Read it off the pictures, or let `simulate.allreduce(name, bytes, workers, simulate.PUBLISHED_CLUSTER)` tell you.

# %% solution="algorithm"
fastest = {
    ("10 kB", 27_000): None,
    ("100 MB", 32): None,
    ("100 MB", 27_000): None,
}
### BEGIN SOLUTION
sizes = {"10 kB": 10e3, "100 MB": 100e6}


def cheapest(words, count):
    costs = {
        name: simulate.allreduce(name, sizes[words], count, simulate.PUBLISHED_CLUSTER)
        for name in simulate.ALGORITHMS
    }
    return min(costs, key=lambda name: costs[name])


fastest = {(words, count): cheapest(words, count) for words, count in fastest}
### END SOLUTION

# %% check="algorithm" points=3
with Check("choose an algorithm") as check:
    check.value(list(fastest.values()), "fastest")
    for (words, count), name in fastest.items():
        size = {"10 kB": 10e3, "100 MB": 100e6}[words]
        costs = {
            each: simulate.allreduce(each, size, count, simulate.PUBLISHED_CLUSTER)
            for each in simulate.ALGORITHMS
        }
        check.that(
            name in costs and costs[name] <= 1.0001 * min(costs.values()),
            f"{words} on {count:,} workers",
            f"You said {name!r}.",
            "few bytes: count the messages that follow each other; many bytes: count the bytes.",
        )

# %% [markdown]
# ## The published figures
#
# Horovod's authors measured three networks on servers with four P100 GPUs each and a network of 25 Gbit/s.
# The simulator knows the machines, the layers of the networks and the speed of one GPU alone.
# Two numbers are fitted to two of the nine figures, since no source gives them; the other seven are predictions. `help("hvdlab.simulate.published")` lists every assumption.

# %%
style.show(
    plots.published(),
    "Published and simulated efficiency of Inception V3, ResNet-101 and VGG-16 on 16, 128 and 512 "
    "GPUs; the simulated values lie within a few points of the published, and VGG-16 lies lowest.",
)
worst = 0
for one in simulate.PUBLISHED:
    step = simulate.reproduce(one)
    worst = max(worst, abs(step.efficiency - one.efficiency))
    told, found = 100 * one.efficiency, 100 * step.efficiency
    print(
        f"{one.network.name:13}{one.workers:4} GPUs: published {told:.0f} %, simulated {found:.0f} %"
    )
print(f"The largest difference is {100 * worst:.1f} points.")

# %%
for one in simulate.PUBLISHED[2::3]:
    step = simulate.reproduce(one)
    print(
        f"{one.network.name:13}: {one.network.bytes / 1e6:4.0f} MB of gradients and "
        f"{1e3 * step.alone:.0f} ms of work a step; {1e3 * step.exposed:.0f} ms of waiting"
    )

# %% [markdown]
# VGG-16 has several times the parameters of the others, most of them in one layer, and nearly the same work.
# That is all the difference between 90 % and 68 %.

# %% [markdown] exercise="network"
# ## Exercise: a faster network
# goal: Use the simulator to answer a question that a purchase depends on.
# minutes: 10
# difficulty: 2
# importance: useful
#
# What would the servers' network have to carry, in Gbit/s, for VGG-16 to reach an efficiency of 85 % on 512 GPUs?
# Find the smallest whole number. `published_with(gbit)` is the cluster with another network, and `simulate.reproduce(vgg, cluster=...)` takes it.

# %%
vgg = simulate.PUBLISHED[-1]


def published_with(gbit):
    """The published cluster with links of so many Gbit/s, of which a ring gets the same share."""
    published = simulate.PUBLISHED_CLUSTER
    link = simulate.Link(published.network.latency, published.network.bandwidth * gbit / 25)
    return simulate.Cluster(published.per_server, published.local, link)


# %% solution="network"
gbit_needed = None
### BEGIN SOLUTION
for gbit_needed in range(1, 400):
    if simulate.reproduce(vgg, cluster=published_with(gbit_needed)).efficiency >= 0.85:
        break
### END SOLUTION

# %% check="network" points=3
with Check("a faster network") as check:
    gbit_needed = check.value(gbit_needed, "gbit_needed")
    found = {}
    for gbit in (gbit_needed - 1, gbit_needed):
        found[gbit] = simulate.reproduce(vgg, cluster=published_with(gbit)).efficiency
    check.that(
        found[gbit_needed] >= 0.85,
        f"{gbit_needed} Gbit/s are enough",
        f"With {gbit_needed} Gbit/s the efficiency is {100 * found[gbit_needed]:.1f} %.",
    )
    check.that(
        found[gbit_needed - 1] < 0.85,
        "it is the smallest",
        f"{gbit_needed - 1} Gbit/s would do as well: {100 * found[gbit_needed - 1]:.1f} %.",
    )

# %% [markdown]
# And up to 27,000 GPUs, with the machines of then and with servers of today (8 GPUs on NVLink, 400 Gbit/s for each):

# %%
counts = [1, 8, 64, 512, 4096, 27_000]
today = {"cluster": simulate.MODERN_CLUSTER, "alone": 64 / vgg.images_per_second / 20}
machines: dict[str, dict] = {
    "4 P100, 25 Gbit/s, ring": {},
    "4 P100, 25 Gbit/s, hierarchical": {"algorithm": "hierarchical"},
    "4 P100, 25 Gbit/s, tree": {"algorithm": "tree"},
    "8 GPUs 20 times as fast, tree": {"algorithm": "tree", **today},
}
curves = {
    name: [simulate.reproduce(vgg, workers=count, **options) for count in counts]
    for name, options in machines.items()
}
alt = "; ".join(f"{name}: {100 * steps[-1].efficiency:.0f} %" for name, steps in curves.items())
style.show(
    plots.efficiency(curves, "VGG-16, 64 images a GPU"),
    f"Simulated efficiency of VGG-16 from 1 to 27,000 workers. At 27,000: {alt}.",
)

# %% [markdown]
# ## What large batches do to learning
#
# W ranks with 32 images each take one step where a single rank takes W: the gradient is the mean over 32 W images.
# To come as far in fewer steps, each step must be longer: **W times the learning rate** (P. Goyal et al., arXiv:1706.02677).
# In the first steps the weights change too fast for that, so the rate starts at that of one rank and grows: the **warm-up**.
#
# A batch of 32 W on one rank has the same gradient as 32 on each of W ranks. So this experiment needs no 64 ranks: a small network, a part of Fashion-MNIST, and batches as large as those of 1, 4, 16 and 64 ranks.

# %% [markdown] exercise="warmup"
# ## Exercise: the learning rate
# goal: Write the schedule with linear scaling and warm-up.
# minutes: 10
# difficulty: 2
# importance: core
#
# `progress` counts epochs, with fractions: 0.5 is the middle of the first one.
# At the start return `base`; during `warmup` epochs let it grow evenly to `base * ranks`; afterwards keep it there. Without a warm-up (`warmup` is 0) it is `base * ranks` from the beginning.


# %% solution="warmup"
def learning_rate(progress, base, ranks, warmup):
    ### BEGIN SOLUTION
    share = min(1.0, progress / warmup) if warmup else 1.0
    return base * (1 + (ranks - 1) * share)
    ### END SOLUTION


# %% check="warmup" points=3
scheduled = False
with Check("the learning rate") as check:
    check.value(learning_rate(0, 0.1, 8, 2), "learning_rate()")
    for progress, warmup, expected, what in (
        (0, 2, 0.1, "it starts at the rate of one rank"),
        (1, 2, 0.45, "half-way through the warm-up it is half-way"),
        (2, 2, 0.8, "after the warm-up it is the rate times the ranks"),
        (7, 2, 0.8, "and stays there"),
        (0, 0, 0.8, "without a warm-up it is there at once"),
    ):
        got = learning_rate(progress, 0.1, 8, warmup)
        seen = f"After {progress} epochs, with {warmup} of warm-up: {got}, not {expected}."
        check.that(abs(got - expected) < 1e-9, what, seen)
    scheduled = check.result == "done"

# %%
from torch import nn
from torch.nn.functional import cross_entropy

from hvdlab import data

fashion = data.load("fashion-mnist")
both_images = [
    torch.from_numpy(part[:8192]) for part in (fashion.train_images, fashion.test_images)
]
images = [part.reshape(-1, 784).float() / 255 - 0.3 for part in both_images]
labels = [torch.from_numpy(p[:8192]).long() for p in (fashion.train_labels, fashion.test_labels)]
torch.set_num_threads(1)


def accuracy_after(ranks, rate, epochs=4, batch=32):
    """Test accuracy (0 to 1) with the batch of `ranks` ranks; rate(progress) is the schedule."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    size = batch * ranks
    steps = max(1, len(labels[0]) // size)
    for epoch in range(epochs):
        order = torch.randperm(len(labels[0]))
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            optimizer.param_groups[0]["lr"] = rate(epoch + step / steps)
            optimizer.zero_grad()
            cross_entropy(model(images[0][chosen]), labels[0][chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(images[1]).argmax(1) == labels[1]).float().mean().item()


BASE, RANKS = 0.02, [1, 4, 16, 64]
accuracies = {
    "the rate of one rank": [accuracy_after(w, lambda p: BASE) for w in RANKS],
    "scaled": [accuracy_after(w, lambda p: BASE * w) for w in RANKS],
}
if scheduled:
    accuracies["scaled, with warm-up"] = [
        accuracy_after(w, lambda p: learning_rate(p, BASE, w, 2)) for w in RANKS
    ]
fig, (axes,) = style.figure(width=6.4)
for name, values in accuracies.items():
    axes.semilogx(RANKS, [100 * value for value in values], "o-", base=2, label=name)
axes.set_xticks(RANKS, [str(count) for count in RANKS])
axes.legend(frameon=False)
style.label(axes, "The same number of epochs", "ranks with 32 images each", "test accuracy (%)")
told = [f"{n}: {', '.join(f'{100 * v:.0f} %' for v in values)}" for n, values in accuracies.items()]
style.show(fig, f"Test accuracy over the number of ranks whose batch is used. {'; '.join(told)}.")

# %% [markdown]
# **Question.** For how many ranks does linear scaling keep the accuracy, and what becomes of 64 ranks?
#
# <details><summary>Answer</summary>
#
# Read it off your picture: with the rate of one rank the accuracy falls as soon as there are few steps; scaling mends that for some time.
# Each point is one run, so that a difference of a point or two means nothing.
# Where the warm-up costs accuracy with few ranks, that is because it takes two of only four epochs, and this small network bears the full rate from the start. The paper warms up for 5 of 90 epochs.
# With 64 ranks there are only a few steps in an epoch, and no learning rate can make up for it: a rate that is long enough is too long for the first steps, and a warm-up uses up the steps that there are.
# So large batches need more epochs, or a better optimizer, and the time that more ranks save is paid back. Measure time *to an accuracy*, not images per second alone.
# </details>

# %% [markdown]
# ## Summary
#
# - Strong scaling shares the same work, weak scaling adds work with every rank. Say which.
# - T = G / W + C(W): fit it to your own runs, quote the error, and don't trust it far beyond what you measured.
# - Bytes a rank hardly depend on W; latencies do. Rings for large tensors, trees for many ranks, hierarchies for servers full of GPUs.
# - What scales is the ratio of work to bytes: VGG-16 has too many bytes for its work.
# - W times the batch needs W times the learning rate, in deep networks with a warm-up, and has an end. Time to accuracy counts.
#
# ### If you have time left
#
# 1. Measure time_steps with the larger Wide ResNet (`create_model("wrn-16-10")`) and a batch of 4. Is its efficiency better or worse? Predict first, from parameters and work.
# 2. Fit with the term "several" in the place of "bytes". Why does two-rank data not tell the two models apart, and which measurement would?
# 3. What does `compression=2` (fp16) change for VGG-16 on 512 GPUs, and what for Inception V3? And `jitter=0`?
# 4. The University of Luxembourg's course on the same subject prints this: ResNet-50 took 141 s an epoch on one GPU and 85 s on two. Which C does that give, and what would you expect on eight?
