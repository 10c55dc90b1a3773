# %% [markdown]
# # Lab 01: Why data parallelism
#
# The whole idea in numpy, without any parallel program: several workers, one model, one mean.
#
# You will be able to
#
# - show that the mean of the workers' gradients is the gradient of the whole batch, and when not;
# - say what travels between the workers, in data and in model parallelism;
# - say why N workers are not N times as fast, from T(W) = G / W + C(W).
#
# **Time**: 45 minutes.
#
# **Before** you begin: lab 00, and you know what a gradient and a batch are.
#
# **Without a GPU**: nothing changes. This lab needs one processor core.

# %%
# %load_ext hvdlab
import numpy as np
from hvdlab import data, style
from hvdlab.exercise import Check

# %% [markdown]
# ## One step of training
#
# A batch of pictures, the smallest model there is (a matrix of weights and a softmax), and its
# gradient: the mean over the pictures of the batch of what each of them wants to change.

# %%
fashion = data.load("fashion-mnist")
images = fashion.train_images[:256].reshape(-1, 784) / 255.0
labels = fashion.train_labels[:256]


def loss_and_gradient(weights, images, labels):
    """The mean loss of these images, and its gradient: one number for each weight."""
    scores = images @ weights
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances = scores / scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels]).mean()
    chances[rows, labels] -= 1
    return loss, images.T @ chances / len(labels)


weights = np.random.default_rng(0).normal(0, 0.01, (784, 10))
loss, whole = loss_and_gradient(weights, images, labels)
print(f"{len(images)} pictures, {weights.size:,} weights, loss {loss:.3f}")
print(f"the gradient has the shape {whole.shape}")

# %% [markdown] exercise="averaged-gradient"
# ## Exercise: four workers, one gradient
# goal: Show that the mean of four gradients is the gradient of the whole batch.
# minutes: 8
# difficulty: 1
# importance: core
#
# Four workers have the same weights. Each gets a quarter of the batch and computes the gradient of
# its quarter. Return the mean of the four gradients.

# %% solution="averaged-gradient"
def averaged_gradient(weights, parts):
    """`parts` is a list of (images, labels), one for each worker."""
    ### BEGIN SOLUTION
    return np.mean([loss_and_gradient(weights, x, y)[1] for x, y in parts], axis=0)
    ### END SOLUTION


# %% check="averaged-gradient" points=2
quarters = list(zip(np.split(images, 4), np.split(labels, 4)))
with Check("four workers, one gradient") as check:
    mean = np.asarray(check.value(averaged_gradient(weights, quarters), "averaged_gradient()"))
    if check.that(
        mean.shape == whole.shape,
        "it has a number for each weight",
        f"Its shape is {mean.shape}, that of the gradient {whole.shape}.",
        "the mean is over the workers only.",
    ):
        apart = np.abs(mean - whole).max()
        check.that(
            apart < 1e-12,
            "it equals the gradient of the whole batch",
            f"The largest difference is {apart:.2g}; the sum of the four would be 4 times too large.",
            "how many workers do you divide by?",
        )

# %% [markdown]
# That is data parallelism: **each worker reads its own part of the data, all of them take the same
# step**. Nobody needs to see all of the batch. What must be shared is one sum, and the operation
# that gives it to everybody is called *allreduce*.

# %% [markdown] exercise="uneven"
# ## Exercise: parts of different size
# goal: Find out when the plain mean is wrong, and put it right.
# minutes: 8
# difficulty: 2
# importance: useful
#
# Now the first worker has only 16 pictures and the last one has 160.
# Return the gradient of the whole batch from the four gradients and the sizes of the parts.

# %% solution="uneven"
def averaged_gradient_uneven(weights, parts):
    ### BEGIN SOLUTION
    total = sum(len(y) for _, y in parts)
    return sum(loss_and_gradient(weights, x, y)[1] * len(y) for x, y in parts) / total
    ### END SOLUTION


# %% check="uneven" points=2
cuts = [16, 56, 96]
uneven = list(zip(np.split(images, cuts), np.split(labels, cuts)))
with Check("parts of different size") as check:
    mean = np.asarray(check.value(averaged_gradient_uneven(weights, uneven), "averaged_gradient_uneven()"))
    plain = np.mean([loss_and_gradient(weights, x, y)[1] for x, y in uneven], axis=0)
    check.that(
        not np.allclose(mean, plain),
        "it is not the plain mean of the four",
        f"The plain mean is off by {np.abs(plain - whole).max():.2g} here.",
        "a picture in a small part must not count more than one in a large part.",
    )
    check.that(
        np.allclose(mean, whole),
        "it equals the gradient of the whole batch",
        f"The largest difference is {np.abs(mean - whole).max():.2g}.",
        "each worker's gradient is a mean already; make a sum of it first.",
    )

# %% [markdown]
# Horovod takes the plain mean. So give every rank the same number of pictures a step; the tools of
# labs 05 to 07 do.

# %% [markdown] exercise="parallel-step"
# ## Exercise: a step on all workers
# goal: Let four workers train, each with its own copy of the weights.
# minutes: 10
# difficulty: 2
# importance: core
#
# Each worker has its own weights and its own part of the batch. Return the new weights of all
# workers, a list: each worker takes one step against the *averaged* gradient.

# %% solution="parallel-step"
def parallel_step(copies, parts, rate):
    """`copies[k]` are worker k's weights, `parts[k]` its images and labels."""
    ### BEGIN SOLUTION
    own = [loss_and_gradient(w, x, y)[1] for w, (x, y) in zip(copies, parts)]
    mean = np.mean(own, axis=0)  # the allreduce
    return [w - rate * mean for w in copies]
    ### END SOLUTION


# %% check="parallel-step" points=3
with Check("a step on all workers") as check:
    after = check.value(parallel_step([weights.copy() for _ in range(4)], quarters, 0.5), "parallel_step()")
    if check.that(len(after) == 4, "four workers have new weights", f"There are {len(after)}."):
        check.that(
            all(np.array_equal(after[0], other) for other in after),
            "all workers have the same weights after the step",
            "Their weights differ.",
            "who started equal and takes the same step stays equal; which step does each one take?",
        )
        check.that(
            np.allclose(after[0], weights - 0.5 * whole),
            "they are those of one process with the whole batch",
            f"The largest difference is {np.abs(after[0] - (weights - 0.5 * whole)).max():.2g}.",
            "a step goes against the gradient: minus rate times gradient.",
        )
    ### BEGIN HIDDEN TESTS
    different = [weights + 0.1 * k for k in range(4)]
    moved = parallel_step(different, quarters, 0.5)
    steps = [new - old for new, old in zip(moved, different)]
    check.that(all(np.allclose(steps[0], step) for step in steps), "all take the same step, wherever they are")
    ### END HIDDEN TESTS

# %% [markdown]
# ## What if they don't average?
#
# Four workers train for 100 steps: once with the mean of all, once each for itself.
# A single process with the whole batch stands beside them.
# What counts is the loss on pictures that nobody has trained on.


# %%
others = fashion.test_images[:2000].reshape(-1, 784) / 255.0, fashion.test_labels[:2000]


def train(average, steps=100, rate=0.1):
    """The loss on other pictures after each step, for each worker; and how far apart they end."""
    copies, curves = [weights.copy() for _ in range(4)], []
    for _ in range(steps):
        gradients = [loss_and_gradient(w, x, y)[1] for w, (x, y) in zip(copies, quarters)]
        if average:
            gradients = [np.mean(gradients, axis=0)] * 4
        copies = [w - rate * g for w, g in zip(copies, gradients)]
        curves.append([loss_and_gradient(w, *others)[0] for w in copies])
    apart = max(np.abs(copies[0] - other).max() for other in copies)
    return np.array(curves), apart


alone, single = weights.copy(), []
for _ in range(100):
    alone = alone - 0.1 * loss_and_gradient(alone, images, labels)[1]
    single.append(loss_and_gradient(alone, *others)[0])
together, apart_together = train(average=True)
apart, apart_alone = train(average=False)

fig, (left, right) = style.figure(columns=2)
left.plot(together[:, 0], linewidth=4, alpha=0.5, label="4 workers, averaged")
left.plot(single, color=style.INK, linestyle="dashed", label="1 process, whole batch")
for worker in range(4):
    right.plot(apart[:, worker], label=f"worker {worker}, for itself")
right.plot(single, color=style.INK, linestyle="dashed", label="1 process, whole batch")
top = 1.05 * max(together.max(), apart.max())
for axis in (left, right):
    axis.set_ylim(0, top)
    axis.legend(fontsize=8, frameon=False)
style.label(left, "With the mean of all gradients", "step", "loss on 2,000 other pictures")
style.label(right, "Each worker for itself", "step", "loss on 2,000 other pictures")
style.show(
    fig,
    "Left: the loss of four workers that average lies exactly on that of one process with the "
    f"whole batch and ends at {together[-1, 0]:.2f}. Right: four workers for themselves end at "
    f"{apart[-1].min():.2f} to {apart[-1].max():.2f}.",
)
print(f"weights at the end: at most {apart_together:.2g} apart with the mean, {apart_alone:.2g} without")

# %% [markdown]
# **Question.** Two workers have averaged every gradient from the first step on, and still end with
# different weights. What went wrong before the first step?
#
# <details><summary>Answer</summary>
#
# They started from different weights, each from its own random numbers. The same step from
# different places ends in different places. That is why every program broadcasts the weights of
# rank 0 before it trains.
# </details>

# %% [markdown]
# ## Data parallelism or model parallelism?
#
# The other way to share the work: every worker sees *all* the data, but keeps only a *part of the
# model*. Here two workers have half the columns of a layer each; side by side, their outputs are
# the layer's.

# %%
layer = np.random.default_rng(1).normal(size=(784, 512))
halves = np.split(layer, 2, axis=1)
side_by_side = np.concatenate([images @ half for half in halves], axis=1)
print("the same output:", np.allclose(side_by_side, images @ layer))

# %% [markdown]
# What travels is different. Data parallelism sends *gradients*, as many numbers as there are
# weights, once a step. Model parallelism sends *outputs* of layers, more of them the larger the
# batch.

# %%
batches = 2 ** np.arange(0, 14)
gradients_sent = np.full(len(batches), layer.size * 4 / 2**20)
outputs_sent = batches * layer.shape[1] * 4 * 2 / 2**20  # forward, and back again
fig, (axes,) = style.figure(width=6.5)
axes.loglog(batches, gradients_sent, label="data parallelism: the layer's gradient")
axes.loglog(batches, outputs_sent, label="model parallelism: outputs, and their gradients")
axes.legend(fontsize=8, frameon=False)
style.label(axes, "What one layer of 784 x 512 weights sends a step", "pictures in the batch", "MiB")
crossing = layer.size / layer.shape[1] / 2
style.show(
    fig,
    f"Data parallelism sends {gradients_sent[0]:.2f} MiB whatever the batch; model parallelism "
    f"sends more with every picture and overtakes it at {crossing:.0f} pictures.",
)
print(f"they cross at a batch of {crossing:.0f} pictures")

# %% [markdown]
# Left of the crossing model parallelism even sends less. But its messages hold up every layer, there
# and back, while gradients can travel during the backward pass; and the model must be cut into parts.
# So data parallelism it is, as long as the model fits on one device: the model stays as it is. This
# course is about data parallelism.

# %% [markdown]
# ## Why it isn't N times as fast
#
# Let `G` be the time in which one worker does the work of a step. `W` workers share it, and then
# they must talk, which takes `C(W)`:
#
# $$T(W) = \frac{G}{W} + C(W)$$
#
# The first part shrinks with every worker. The second one does not.

# %% [markdown] exercise="speed-up"
# ## Exercise: the speed-up
# goal: Put the formula to work.
# minutes: 6
# difficulty: 1
# importance: core
#
# Write the time of a step with `workers` workers, and from it the speed-up: how many times as fast
# they are as one worker, who talks to nobody. All times are in seconds.

# %% solution="speed-up"
def step_time(work, workers, talk):
    """`work` is G, `talk` is C(W); one worker does not talk."""
    ### BEGIN SOLUTION
    return work / workers + (talk if workers > 1 else 0)
    ### END SOLUTION


def speed_up(work, workers, talk):
    ### BEGIN SOLUTION
    return step_time(work, 1, 0) / step_time(work, workers, talk)
    ### END SOLUTION


# %% check="speed-up" points=2
with Check("the speed-up") as check:
    check.value([step_time(1, 4, 0), speed_up(1, 4, 0)], "step_time() and speed_up()")
    seen = step_time(0.1, 4, 0.02)
    check.that(
        np.isclose(seen, 0.045), "100 ms of work on 4 workers, 20 ms of talk: 45 ms", f"You have {seen * 1000:.3g} ms."
    )
    seen = step_time(0.1, 1, 0.02)
    check.that(np.isclose(seen, 0.1), "one worker talks to nobody", f"You have {seen * 1000:.3g} ms for it.")
    seen = speed_up(0.1, 4, 0.02)
    check.that(
        np.isclose(seen, 0.1 / 0.045),
        "the speed-up is the time of one worker over that of all",
        f"You have {seen:.3g}.",
        "large is good: which time stands above the line?",
    )
    check.that(np.isclose(speed_up(1, 8, 0), 8), "without talk, 8 workers are 8 times as fast")

# %% [markdown] exercise="predict-speed-up"
# ## Exercise: predict
# goal: Guess before you compute.
# minutes: 3
# difficulty: 1
# importance: useful
#
# A step takes one worker 100 ms. Whoever talks needs 20 ms for it, however many they are.
# How many times as fast are 16 workers as one?

# %% solution="predict-speed-up"
guess = None  # times as fast
### BEGIN SOLUTION
guess = 8
### END SOLUTION

# %% check="predict-speed-up" points=1
from hvdlab.predict import predict

prediction = predict("speed-up of 16", guess, "times", "How many times as fast are 16 workers as one?")
with Check("predict") as check:
    check.value(guess, "your guess")
    check.that(0 < guess <= 16, "a speed-up lies between 0 and the number of workers", f"You wrote {guess!r}.")

# %%
prediction.reveal(0.1 / (0.1 / 16 + 0.02))

# %%
workers = np.arange(1, 65)
fig, (left, right) = style.figure(columns=2)
for talk in (0.001, 0.005, 0.02):
    times = np.where(workers > 1, 0.1 / workers + talk, 0.1)
    left.plot(workers, 0.1 / times, label=f"C = {talk * 1000:.0f} ms")
    right.plot(workers, 100 * 0.1 / times / workers, label=f"C = {talk * 1000:.0f} ms")
left.plot(workers, workers, color=style.INK, linestyle="dashed", label="ideal")
left.set_ylim(0, 40)
for axis in (left, right):
    axis.legend(fontsize=8, frameon=False)
style.label(left, "Speed-up of a step of G = 100 ms", "workers W", "times as fast as one worker")
style.label(right, "Efficiency", "workers W", "speed-up / workers (%)")
limits = ", ".join(f"{0.1 / talk:.0f} for C = {talk * 1000:.0f} ms" for talk in (0.001, 0.005, 0.02))
style.show(
    fig,
    "Left: with more workers the speed-up falls more and more behind the ideal line and approaches "
    f"G / C, which is {limits}. Right: the efficiency falls with every worker.",
)

# %% [markdown]
# **Question.** What can you do about it, without a faster network?
#
# <details><summary>Answer</summary>
#
# Make G larger: give each worker more pictures a step (lab 09 says what that does to the
# accuracy). Or talk while you compute: the gradient of the last layer is ready long before that of
# the first one (lab 04). Or send less: half precision (lab 08).
# </details>

# %% [markdown]
# ## Summary
#
# - Data parallelism: the same weights everywhere, different data, one averaged gradient.
# - With parts of the same size, that is exactly the step of one process with the whole batch.
# - It only works if all start from the same weights and average every gradient.
# - T(W) = G / W + C(W): what you can gain is limited by what you must say.
#
# ### If you have time left
#
# 1. The whole batch of 4 workers is 4 times as large as that of one. Train with `rate` and with
#    `4 * rate` on `quarters`, and compare the curves with 4 steps of one worker on a quarter.
# 2. Let the workers average their *weights* every 5 steps instead of their gradients every step.
#    How far apart do they get, and what does it do to the loss?
# 3. Let C grow with the number of workers, as `C(W) = W * 1 ms` (a parameter server, lab 03).
#    At which W is a step the fastest?
