# %% [markdown]
# # Lab 00: Welcome
#
# Everything is in place when this notebook has run from top to bottom.
#
# You will be able to
#
# - see what your machine has, and whether it is ready for the course;
# - start one program as several processes, from a notebook's cell;
# - find the data;
# - read an exercise's card and its check.
#
# **Time**: 30 minutes.
#
# **Before** you begin: you can run the cells of a notebook (Shift+Enter) and read Python.
#
# **Without a GPU**: nothing changes. Two processor cores are enough for all of this lab.

# %% [markdown]
# ## How the labs work
#
# Text, then a cell to run, then something for you to do.
# What you do is an *exercise*. It has a card that says what it is for, how long it takes and how
# hard it is; if time is short, do those that say *core* and leave out the rest.
# Right below it stands its *check*. A check looks at what your code does, not at how you wrote it,
# and it never stops the notebook.
#
# The first cell of each lab makes the course's commands known to the notebook.

# %%
# %load_ext hvdlab
import numpy as np
from hvdlab.exercise import Check

# %% [markdown] exercise="share"
# ## Exercise: a fair share
# goal: See how an exercise and its check work.
# minutes: 3
# difficulty: 1
# importance: core
#
# In data-parallel training each process reads its own part of the images.
# Write how many images process number `rank` of `size` processes reads, if `images` are shared
# out as evenly as possible and the first processes take what is left over.
# Run the check once before you write anything, to see what it says.

# %% solution="share"
def share(images, rank, size):
    ### BEGIN SOLUTION
    return images // size + (rank < images % size)
    ### END SOLUTION


# %% check="share" points=1
with Check("a fair share") as check:
    parts = check.value([share(60_000, rank, 4) for rank in range(4)], "share()")
    check.that(parts == [15_000] * 4, "4 processes get 15,000 of 60,000 images each", f"They got {parts}.")
    parts = [share(10, rank, 4) for rank in range(4)]
    check.that(
        sum(parts) == 10,
        "no image is lost and none is read twice",
        f"10 images for 4 processes gave {parts}, which is {sum(parts)} together.",
        "integer division throws a rest away; who takes it?",
    )
    check.that(
        parts == [3, 3, 2, 2],
        "the first processes take the rest",
        f"10 images for 4 processes gave {parts}.",
        "process number 0 is the first; compare rank with the rest.",
    )
    ### BEGIN HIDDEN TESTS
    def is_fair(parts, images):
        return sum(parts) == images and parts == sorted(parts, reverse=True) and parts[0] - parts[-1] <= 1

    unfair = [
        (images, size)
        for size in range(1, 9)
        for images in range(30)
        if not is_fair([share(images, rank, size) for rank in range(size)], images)
    ]
    check.that(not unfair, "any number of images and processes", f"Wrong for {unfair[:3]}.")
    ### END HIDDEN TESTS

# %% [markdown]
# ## Your machine
#
# The doctor looks at everything that the course needs.
# ✔ is fine, – is not there, which is no fault, and ✘ says what to do.

# %%
# !hvdlab doctor

# %% [markdown]
# And this is what the installation can do. An `[X]` means yes.

# %%
# !horovodrun --check-build

# %% [markdown]
# ## One program, several processes
#
# `horovodrun -np 2` starts the same program twice, as two *processes* that know of each other.
# Each of them is a *rank* and has a number, from 0.
# `%%horovodrun -np 2` at the top of a cell does that with the code of the cell.
# The cell then is a program of its own: it sees none of the notebook's variables.

# %%
# %%horovodrun -np 2
import horovod.torch as hvd

hvd.init()
print(f"I am rank {hvd.rank()} of {hvd.size()}, number {hvd.local_rank()} on this machine")

# %% [markdown]
# **Question.** Run the cell again, several times. Do the lines always come in the same order?
#
# <details><summary>Answer</summary>
#
# No, and nobody promises it. The ranks run side by side, and whoever is first prints first.
# The second number in the brackets is the rank that a line comes from; horovodrun puts it there.
# </details>

# %% [markdown]
# The two can work together. Here each rank has a number, and `allreduce` gives both of them the
# sum. It is the one operation that this course is about.

# %%
# %%horovodrun -np 2
import horovod.torch as hvd
import torch

hvd.init()
mine = torch.tensor([10.0 * (hvd.rank() + 1)])
total = hvd.allreduce(mine, op=hvd.Sum)
print(f"I had {mine.item():.0f}, together we have {total.item():.0f}")

# %% [markdown] exercise="first-ranks"
# ## Exercise: your first ranks
# goal: Write a function that runs on several ranks, and bring back what each of them found.
# minutes: 8
# difficulty: 1
# importance: core
#
# `horovod.run(function, np=2)` calls a function on two ranks and returns a list with what each of
# them returned. Let each rank return three numbers: its rank, the number of ranks, and the sum of
# the ranks' own numbers, `hvd.rank() + 1`, taken with `hvd.allreduce`.

# %% solution="first-ranks"
import horovod


def who_am_i():
    import horovod.torch as hvd
    import torch

    hvd.init()
    ### BEGIN SOLUTION
    total = hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum)
    return hvd.rank(), hvd.size(), int(total)
    ### END SOLUTION


# %% check="first-ranks" points=2
with Check("your first ranks") as check:
    answers = check.value(horovod.run(who_am_i, np=2), "who_am_i()")
    check.that(
        [answer[0] for answer in answers] == [0, 1],
        "the two ranks have the numbers 0 and 1",
        f"They returned {answers}.",
        "hvd.rank() comes first in what you return.",
    )
    check.that(
        [answer[1] for answer in answers] == [2, 2],
        "both know that there are two of them",
        f"They returned {answers}.",
        "hvd.size() comes second.",
    )
    check.that(
        [answer[2] for answer in answers] == [3, 3],
        "both have the sum of 1 and 2",
        f"They returned {answers}.",
        "allreduce averages unless you name another op; look at the cell above.",
    )

# %% [markdown]
# ## Predict first
#
# Now and then the course asks you for a number *before* you measure.
# A wrong guess is worth more than no guess: it shows where your picture of the machine is off.
# Your guesses are kept to the end of the course: `hvdlab.predict.ledger()` draws them all.

# %% [markdown] exercise="start-up"
# ## Exercise: what does a start cost?
# goal: Guess how long two ranks take to start, import PyTorch, add two numbers and end.
# minutes: 3
# difficulty: 1
# importance: useful
#
# Write your guess in seconds, then run the cells below.

# %% solution="start-up"
guess = None  # seconds
### BEGIN SOLUTION
guess = 3
### END SOLUTION

# %% check="start-up" points=1
from hvdlab.predict import predict

prediction = predict("start-up", guess, "s", "How long do two ranks take to start and to end?")
with Check("what does a start cost?") as check:
    check.value(guess, "your guess")
    check.that(guess > 0, "a time is a number above 0", f"You wrote {guess!r}.")


# %%
from hvdlab.timing import measure


def add_on_two_ranks():
    def add():
        import horovod.torch as hvd
        import torch

        hvd.init()
        return hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item()

    return horovod.run(add, np=2)


start_up = measure(add_on_two_ranks, repeats=2, warm_up=0)
prediction.reveal(start_up)

# %% [markdown]
# **Question.** An allreduce of one number takes far less than a thousandth of this time. What does
# it mean for a program that starts new ranks for each small task?
#
# <details><summary>Answer</summary>
#
# Nearly all of its time goes into starting. Ranks are started once and then train for a long
# time; in lab 02 you will have ranks that stay up between the cells.
# </details>

# %% [markdown]
# ## The data
#
# The course trains on Fashion-MNIST: small grey pictures of clothes, ten kinds of them.
# `hvdlab data` fetches them once, checks them, and works without the Internet if they are there.

# %%
from hvdlab import data, style

fashion = data.load("fashion-mnist")
print(f"{len(fashion.train_images):,} pictures to train on, {len(fashion.test_images):,} to test with,")
print(f"{fashion.train_images.shape[1]} x {fashion.train_images.shape[2]} pixels, {fashion.train_images.nbytes / 2**20:.0f} MiB")

# %%
fig, axes = style.figure(columns=10, width=0.95, height=1.5)
for kind, axis in enumerate(axes):
    first = np.flatnonzero(fashion.train_labels == kind)[0]
    axis.imshow(fashion.train_images[first], cmap="gray_r")
    axis.set_title(fashion.classes[kind], fontsize=8, color=style.INK)
    axis.set_axis_off()
style.show(fig, "One picture of each of the ten kinds of clothes: " + ", ".join(fashion.classes) + ".")

# %% [markdown]
# ## Summary
#
# - `horovodrun -np 2 program` starts a program as two ranks; `%%horovodrun -np 2` does so with a
#   cell, and `horovod.run` with a function.
# - Each rank knows its number (`rank`) and how many there are (`size`).
# - `allreduce` gives every rank the sum, or the mean, of what all of them have.
# - Starting ranks costs seconds. Talking does not.
#
# ### If you have time left
#
# 1. Start the first program on 4 ranks, on a machine with 2 cores. Does it work? What would you
#    expect of its speed?
# 2. Let only rank 0 print, and let it print once for all ranks: use `hvd.allgather_object`.
# 3. Let rank 1 raise an error before the `allreduce`, and read what horovodrun says.
#    Which rank's traceback do you see, and how did the other one end?
