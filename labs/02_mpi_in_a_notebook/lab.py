# %% [markdown]
# # Lab 02: MPI in a notebook
#
# Several processes that stay up between the cells, and the few calls with which they talk.
#
# You will be able to
#
# - run a cell on several ranks, and know which rank does what;
# - send and receive, broadcast, reduce and allreduce;
# - read why a program hangs, and get out of it.
#
# **Time**: 60 minutes.
#
# **Before** you begin: lab 00.
#
# **Without a GPU**: nothing changes. The lab starts two ranks; every cell works with more.

# %%
# %load_ext hvdlab
import numpy as np
from hvdlab import engines
from hvdlab.exercise import Check

# %% [markdown]
# ## Ranks that stay
#
# `horovodrun` starts ranks, runs a program and ends them. Here we want to talk to them cell by
# cell. *Engines* are ranks that wait for the notebook's cells; underneath is ipyparallel, with
# `ipp.Cluster(engines="mpi")`. Each of them is a process of its own and has a number, its *rank*.

# %%
ranks = engines.start(2)
ranks

# %% [markdown]
# A cell that begins with `%%px` runs on all of them. The notebook's own process is not among them:
# it sees none of their variables, and they see none of its.

# %%
# %%px
from mpi4py import MPI
import numpy as np

comm = MPI.COMM_WORLD
print(f"I am rank {comm.rank} of {comm.size}")

# %% [markdown]
# ## One program, several ranks
#
# All ranks run the *same* code. What differs is `comm.rank`, and so the data and the way through
# the `if`s. This is called SPMD: single program, multiple data.

# %%
# %%px
mine = (comm.rank + 1) * 100
if comm.rank == 0:
    print("only rank 0 says this")
print("mine is", mine)

# %% [markdown] exercise="my-part"
# ## Exercise: my part of the numbers
# goal: Let every rank work on its own part.
# minutes: 6
# difficulty: 1
# importance: core
#
# Together the ranks are to add up the numbers from 0 to 999. Let `part` be the sum of this rank's
# share: rank 0 takes the numbers 0, size, 2 size ..., rank 1 takes 1, size + 1 ..., and so on.

# %% solution="my-part"
# %%px
numbers = np.arange(1000)
part = None
### BEGIN SOLUTION
part = int(numbers[comm.rank :: comm.size].sum())
### END SOLUTION

# %% check="my-part" points=1
with Check("my part of the numbers") as check:
    parts = check.value(ranks.pull("part"), "part")
    check.that(
        sum(parts) == sum(range(1000)),
        "together it is the sum of all numbers",
        f"The ranks have {parts}, together {sum(parts)}; it should be {sum(range(1000))}.",
        "does every number belong to exactly one rank?",
    )
    wanted = [sum(range(rank, 1000, ranks.size)) for rank in range(ranks.size)]
    check.that(parts == wanted, "each rank has its own share", f"They have {parts}.", "numbers[start::step]")

# %% [markdown]
# ## Send and receive
#
# A message has a sender and a receiver, and both must say so: one calls `send`, the other `recv`.
# With a small letter they take any Python object; with a capital letter (`Send`, `Recv`) a numpy
# array, which goes as it is and much faster.

# %%
# %%px
if comm.rank == 0:
    comm.send({"from": 0, "text": "hello"}, dest=1)
elif comm.rank == 1:
    print("received", comm.recv(source=0))

# %% [markdown] exercise="there-and-back"
# ## Exercise: there and back
# goal: Send an array to a neighbour, let it work, and get the result back.
# minutes: 10
# difficulty: 2
# importance: core
#
# Rank 0 sends `values` to rank 1. Rank 1 doubles each number and sends them back. At the end
# `answer` is the doubled array on rank 0. On all other ranks it stays None.

# %% solution="there-and-back"
# %%px
values = np.array([1.0, 2.0, 3.0]) if comm.rank == 0 else None
answer = None
### BEGIN SOLUTION
if comm.rank == 0:
    comm.send(values, dest=1)
    answer = comm.recv(source=1)
elif comm.rank == 1:
    comm.send(2 * comm.recv(source=0), dest=0)
### END SOLUTION

# %% check="there-and-back" points=2
with Check("there and back") as check:
    answers = ranks.pull("answer")
    check.value(answers[0], "answer on rank 0")
    check.that(
        np.allclose(answers[0], [2, 4, 6]),
        "rank 0 has the doubled numbers",
        f"It has {answers[0]}.",
        "rank 1 must send what it has computed, not what it got.",
    )
    check.that(
        all(answer is None for answer in answers[1:]),
        "nobody else has an answer",
        f"They have {answers[1:]}.",
        "which rank's `if` do you set it in?",
    )

# %% [markdown]
# ## All at once: broadcast, reduce, allreduce
#
# What concerns all ranks is one call that *all* of them make, a *collective*.

# %%
# %%px
secret = 42 if comm.rank == 0 else None
secret = comm.bcast(secret, root=0)  # rank 0's value, on all ranks
total = comm.reduce(comm.rank + 1, root=0)  # the sum, on rank 0 only
everywhere = comm.allreduce(comm.rank + 1)  # the sum, on all ranks
print(f"secret {secret}, reduce {total}, allreduce {everywhere}")

# %% [markdown] exercise="equal-start"
# ## Exercise: start equal, stay equal
# goal: Do what every data-parallel training does, with two calls.
# minutes: 10
# difficulty: 2
# importance: core
#
# Each rank has random weights of its own and a gradient of its own. Give all ranks the weights of
# rank 0; then take one step of 0.1 against the *mean* of all gradients.

# %% solution="equal-start"
# %%px
weights = np.random.default_rng(comm.rank).normal(size=3)
gradient = np.full(3, comm.rank + 1.0)
new_weights = None
### BEGIN SOLUTION
weights = comm.bcast(weights, root=0)
new_weights = weights - 0.1 * comm.allreduce(gradient) / comm.size
### END SOLUTION

# %% check="equal-start" points=3
with Check("start equal, stay equal") as check:
    found = check.value(ranks.pull("new_weights"), "new_weights")
    check.that(
        all(np.allclose(found[0], other) for other in found),
        "all ranks have the same weights",
        f"They have {[np.round(one, 2).tolist() for one in found]}.",
        "did all of them start from rank 0's weights?",
    )
    start = np.random.default_rng(0).normal(size=3)
    mean = np.mean([rank + 1.0 for rank in range(ranks.size)])
    check.that(
        np.allclose(found[0], start - 0.1 * mean),
        "they took one step against the mean of the gradients",
        f"Rank 0 went by {np.round(found[0] - start, 3).tolist()}; it should go by {-0.1 * mean:.3f}.",
        "allreduce gives the sum.",
    )

# %% [markdown]
# ## When a rank fails
#
# Rank 1 makes a mistake, and rank 0 waits for it in a collective. Run the cell and see what you are
# told. The ranks are usable again at once.

# %% tags=["raises-exception"]
# %%px
if comm.rank == 1:
    raise ValueError("something went wrong here")
comm.barrier()

# %%
# %%px
print("still here:", comm.allreduce(1), "ranks")

# %% [markdown]
# ## A deadlock, made on purpose
#
# Each rank first waits for a message of its neighbour, and would send its own afterwards. Nobody
# ever sends. **Run the cell, read what it says after some seconds, and press the interrupt button
# (■).** If you don't, it is interrupted by itself after 15 seconds.

# %%
# %%px --limit 15
neighbour = (comm.rank + 1) % comm.size
before = (comm.rank - 1) % comm.size
received = comm.recv(source=before)
comm.send("never sent", dest=neighbour)

# %% [markdown]
# Each line says for one rank in which call it waits, for whom, since when, and where in your code.
# The ranks have forgotten the cell and are ready for the next:

# %%
# %%px
print("still here:", comm.allreduce(1), "ranks")

# %% [markdown] exercise="exchange"
# ## Exercise: out of the deadlock
# goal: Let all ranks pass something on to their neighbour, without a deadlock.
# minutes: 10
# difficulty: 2
# importance: core
#
# Write `pass_on(comm, mine)`: every rank sends `mine` to the next rank (the last one to rank 0) and
# returns what came from the one before. It must work with any number of ranks, and with large
# arrays.

# %% solution="exchange"
# %%px
def pass_on(comm, mine):
    ### BEGIN SOLUTION
    return comm.sendrecv(mine, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    ### END SOLUTION


# %% check="exchange" points=3
with Check("out of the deadlock") as check:
    ranks.push(small=None, large=None)
    ranks.run("small = pass_on(comm, comm.rank)", limit=10)
    small = check.value(ranks.pull("small"), "pass_on(), or it did not come to its end")
    wanted = [(rank - 1) % ranks.size for rank in range(ranks.size)]
    check.that(small == wanted, "everybody has what the one before had", f"They have {small}; wanted: {wanted}.")
    ranks.run("large = float(pass_on(comm, np.full(4_000_000, comm.rank, float))[-1])", limit=15)
    large = ranks.pull("large")
    check.that(
        large == wanted,
        "it works with 32 MB, too",
        f"They have {large}.",
        "a large send waits until the other side receives. Can the two be one call? mpi4py has it.",
    )

# %% [markdown]
# ## The deadlock that is not always there
#
# Both ranks send first and receive then. **Question:** does it hang? Run it with a small and with a
# large array.

# %%
# %%px --limit 12
for count in (10, 4_000_000):
    comm.send(np.zeros(count), dest=neighbour)
    comm.recv(source=before)
    if comm.rank == 0:
        print(f"{count:,} numbers: sent and received")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A small message is put down somewhere and `send` returns. A large one is not: `send` waits for
# the receiver, and so both wait for each other. A program that works with small data and hangs with
# large is often this one.
# </details>

# %% [markdown]
# ## Horovod, on the same ranks
#
# Everything so far was MPI. `horovod.torch` speaks to the same ranks and needs fewer words.
# Its `allreduce` gives the *mean*, unless you say `op=hvd.Sum`.

# %%
# %%px
import horovod.torch as hvd
import torch

hvd.init()
print(hvd.rank(), hvd.size(), hvd.allreduce(torch.tensor([1.0 * hvd.rank()])))

# %% [markdown]
# A hang explains itself here, too. Rank 0 asks for an allreduce that the others never come to:

# %%
# %%px --limit 10
if hvd.rank() == 0:
    hvd.allreduce(torch.ones(3), name="loss")

# %%
engines.stop()

# %% [markdown]
# ## Summary
#
# - All ranks run the same code; `rank` decides who does what.
# - Point to point: who sends needs somebody who receives. Collectives: all ranks, the same calls, in
#   the same order.
# - `bcast` makes equal, `allreduce` keeps equal. Training needs little else.
# - A hang is nearly always a rank that waits for one that will not come. Look who waits for whom.
#
# ### If you have time left
#
# 1. Write `broadcast(comm, value)` with `send` and `recv` only. How many messages does it take, and
#    how many of them one after the other? Can you do it in fewer steps?
# 2. Let rank 0 call `comm.barrier()` and the others `comm.bcast(1)`. What are you told?
# 3. Start 4 ranks with `engines.start(4)` and run this notebook again. What changes?
