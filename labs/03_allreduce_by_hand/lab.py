# %% [markdown]
# # Lab 03: Allreduce by hand
#
# You write the operation that everything rests on, twice, and see what each rank really sends.
#
# You will be able to
#
# - write an allreduce with a parameter server and with a ring, from sends and receives;
# - count what an algorithm sends, and say which rank is the bottleneck;
# - measure it against MPI and shared memory, and say what the measurement allows.
#
# **Time**: 60 minutes.
#
# **Before** you begin: lab 02.
#
# **Without a GPU**: one line less in one picture. Four ranks work on two cores, too; only the times suffer, and
# the last part says so.

# %%
# %load_ext hvdlab
import numpy as np
from hvdlab import engines, rings, style
from hvdlab.exercise import Check

ranks = engines.start(4)
ranks

# %%
# %%px
from mpi4py import MPI
import numpy as np

comm = MPI.COMM_WORLD

# %% [markdown]
# ## The task
#
# Every rank has an array `data` of the same length. At the end every rank has the sum of all of
# them, in `data` itself. You may use `comm.Send(array, dest=...)`, `comm.Recv(array, source=...)`
# and `comm.Sendrecv(array, dest=..., recvbuf=other, source=...)`, which does both at the same time.

# %% [markdown] exercise="server"
# ## Exercise: a parameter server
# goal: Write the simplest allreduce there is.
# minutes: 10
# difficulty: 1
# importance: core
#
# Rank 0 is the server. It receives the array of each other rank, one after the other, adds it to
# its own, and at the end sends the sum to all of them.

# %% solution="server"
# %%px
def server_allreduce(comm, data):
    arriving = np.empty_like(data)
    ### BEGIN SOLUTION
    if comm.rank == 0:
        for worker in range(1, comm.size):
            comm.Recv(arriving, source=worker)
            data += arriving
        for worker in range(1, comm.size):
            comm.Send(data, dest=worker)
    else:
        comm.Send(data, dest=0)
        comm.Recv(data, source=0)
    ### END SOLUTION


# %% check="server" points=2
def check_sum(check, recording, name):
    """What any allreduce must do: end, be written by hand, and be right on all ranks."""
    if recording is None:
        check.that(False, "it comes to its end", "It did not; see above who waited for whom.")
        return False
    check.value(None if recording.is_empty else recording, name)
    check.that(
        not recording.collectives,
        "it sends and receives by itself",
        f"It calls {', '.join(recording.collectives)}, which does the work for you.",
    )
    wrong = [rank for rank, right in enumerate(recording.right) if not right]
    return check.that(
        not wrong,
        "every rank has the sum of all",
        f"Rank {', '.join(map(str, wrong))} does not.",
        "the picture below shows whose numbers each rank has at the end.",
    )


server = None
with Check("a parameter server") as check:
    server = rings.record(ranks, "server_allreduce")
    if check_sum(check, server, "server_allreduce()") and server:
        workers = server.messages_sent[1:]
        check.that(
            workers == [1] * (ranks.size - 1),
            "each worker sends one message",
            f"They send {workers}.",
            "a worker talks to rank 0 only.",
        )

# %% [markdown]
# ## What did it send?
#
# The picture is made of the messages that *your* function really sent. Each rank's array is cut
# into as many chunks as there are ranks. A stripe in a chunk says whose numbers are in it; a chunk
# with all stripes is done. Move the slider.

# %%
if server and not server.is_empty:
    rings.show(server, "Parameter server")

# %% [markdown]
# **Question.** The server sends and receives everything. What happens to the time of a step when
# there are twice as many workers?
#
# <details><summary>Answer</summary>
#
# All arrays go through the one link of rank 0, in and out, while the others wait. Twice the workers
# take twice as long. Look at the bars: they say what each rank has sent, as multiples of its array.
# </details>

# %% [markdown]
# ## The ring
#
# Nobody should carry more than the others. So the ranks stand in a circle, and the array is cut
# into `size` chunks. In each step every rank sends *one chunk* to its right neighbour and receives
# one from its left:
#
# 1. **scatter-reduce**: what arrives is *added* to one's own chunk. After `size - 1` steps every
#    rank has one chunk that is complete.
# 2. **allgather**: the complete chunks travel on around the circle and *replace* the others.

# %% [markdown] exercise="scatter-reduce"
# ## Exercise: scatter-reduce
# goal: Write the first half of the ring.
# minutes: 15
# difficulty: 3
# importance: core
#
# `chunks` are views: what you change in them changes `data`. In step `s`, rank `r` sends chunk
# `r - s` and receives chunk `r - s - 1`, counted around the circle (`% size`). Add what arrives.
# At the end rank `r` has the complete chunk `r + 1`.

# %% solution="scatter-reduce"
# %%px
def scatter_reduce(comm, data):
    rank, size = comm.rank, comm.size
    chunks = np.array_split(data, size)
    arriving = np.empty_like(chunks[0])  # the first chunk is the longest
    ### BEGIN SOLUTION
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        incoming = arriving[: len(mine)]
        comm.Sendrecv(
            chunks[(rank - step) % size], dest=(rank + 1) % size,
            recvbuf=incoming, source=(rank - 1) % size,
        )
        mine += incoming
    ### END SOLUTION


# %% check="scatter-reduce" points=4
half = None
with Check("scatter-reduce") as check:
    half = rings.record(ranks, "scatter_reduce")
    if half is None:
        check.that(False, "it comes to its end", "It did not; see above who waited for whom.")
    else:
        check.value(None if half.is_empty else half, "scatter_reduce()")
        size = half.size
        complete = [
            [chunk for chunk, counts in enumerate(half.states[-1][rank]) if set(counts) == {1}]
            for rank in range(size)
        ]
        check.that(
            all((rank + 1) % size in complete[rank] for rank in range(size)),
            "rank r has the complete chunk r + 1",
            f"Complete chunks of each rank: {complete}.",
            "what arrives in step s must be the chunk that you add it to; write the numbers down for rank 0.",
        )
        twice = [rank for rank in range(size) for counts in half.states[-1][rank] if max(counts) > 1]
        check.that(not twice, "no rank's numbers are added twice", f"They are on rank {sorted(set(twice))}.")
        check.that(
            max(half.bytes_sent) <= half.data_bytes * (size - 1) / size * 1.01,
            "each rank sends size - 1 chunks, and no more",
            f"The busiest sends {max(half.bytes_sent) / half.data_bytes:.2f} times its array; "
            f"it should be {(size - 1) / size:.2f}.",
            "send a chunk, not the array.",
        )

# %% [markdown] exercise="ring"
# ## Exercise: allgather, and the ring is closed
# goal: Write the second half.
# minutes: 10
# difficulty: 2
# importance: core
#
# Now the complete chunks go around. In step `s`, rank `r` sends chunk `r + 1 - s` and receives
# chunk `r - s`, right into its place.

# %% solution="ring"
# %%px
def ring_allreduce(comm, data):
    rank, size = comm.rank, comm.size
    chunks = np.array_split(data, size)
    scatter_reduce(comm, data)
    ### BEGIN SOLUTION
    for step in range(size - 1):
        comm.Sendrecv(
            chunks[(rank + 1 - step) % size], dest=(rank + 1) % size,
            recvbuf=chunks[(rank - step) % size], source=(rank - 1) % size,
        )
    ### END SOLUTION


# %% check="ring" points=4
ring = None
with Check("the ring") as check:
    ring = rings.record(ranks, "ring_allreduce")
    if check_sum(check, ring, "ring_allreduce()") and ring:
        share = max(ring.bytes_sent) / ring.data_bytes
        check.that(
            max(ring.bytes_sent) <= 1.01 * ring.least,
            "no rank sends more than it must",
            f"The busiest rank sends {share:.2f} times its array; {ring.least / ring.data_bytes:.2f} times "
            "is enough. The sum is right, but this is no ring: its price grows with the ranks.",
            "one chunk a message, not the whole array.",
        )
        neighbours = {(m.target - m.source) % ring.size for m in ring.messages}
        check.that(
            neighbours == {1},
            "everybody sends to the right neighbour only",
            f"Messages also go {sorted(neighbours)} places on.",
        )
        ranks.push(last=None)
        ranks.run("large = np.ones(1_000_000); ring_allreduce(comm, large); last = float(large[-1])", limit=20)
        check.that(
            ranks.pull("last") == [ring.size] * ring.size,
            "it also works with 8 MB",
            "It did not end, or the sum is wrong. A small message may be put down somewhere; a large one waits for its receiver.",
            "send and receive in one call: `Sendrecv`.",
        )
        ranks.run("odd = np.arange(7.0) + comm.rank; ring_allreduce(comm, odd)", limit=20)
        odd, wanted = ranks.pull("odd"), ring.size * np.arange(7.0) + sum(range(ring.size))
        check.that(
            all(np.allclose(one, wanted) for one in odd),
            f"and with 7 numbers, which is no multiple of {ring.size}",
            f"Rank 0 has {odd[0].tolist()}, and the sum is {wanted.tolist()}.",
            "`np.array_split` cuts into parts that differ by one at most.",
        )
    ### BEGIN HIDDEN TESTS
    for size in (2, 3):
        other = rings.record(ranks, "ring_allreduce", size)
        check.that(other is not None and all(other.right), f"it works on {size} ranks")
    ### END HIDDEN TESTS

# %% [markdown]
# ## Your ring, replayed

# %%
if ring and not ring.is_empty:
    rings.show(ring, "Ring")
    rings.storyboard(ring, "Your ring, all steps at a glance")

# %% [markdown]
# ## What it costs, counted
#
# No clock is needed to compare the two: count the bytes through the busiest rank, in and out, for
# 2, 3 and 4 ranks. The lines carry it on by the formula; the dots are your functions.

# %%
fig, (axes,) = style.figure(width=6.5)
many = np.arange(2, 17)
axes.plot(many, 2 * (many - 1), label="parameter server: 2 (N - 1)")
axes.plot(many, 4 * (many - 1) / many, label="ring: 4 (N - 1) / N")
counted = []
for size in (2, 3, 4):
    for function, colour in (("server_allreduce", 0), ("ring_allreduce", 1)):
        found = rings.record(ranks, function, size)
        if found and not found.is_empty:
            busiest = max(a + b for a, b in zip(found.bytes_sent, found.bytes_received)) / found.data_bytes
            axes.plot(size, busiest, "o", color=style.COLOURS[colour], markersize=8)
            counted.append(f"{function} on {size} ranks {busiest:.2f}")
axes.plot([], [], "o", color="#777777", label="counted in your functions")
axes.legend(fontsize=8, frameon=False)
style.label(axes, "Through the busiest rank", "ranks N", "bytes in and out / bytes of the array")
style.show(
    fig,
    "The line of the parameter server rises with every rank, that of the ring stays below 4. "
    "Counted: " + ("; ".join(counted) or "nothing yet") + ".",
)

# %% [markdown]
# ## What it takes, measured
#
# Messages cost twice: a fixed time for each, and a time for each byte. Rank 0 of the server handles
# 2 (N - 1) messages. In the ring every rank sends as many, each step waits for the one before, and
# there are 2 N (N - 1) in all, but fewer bytes go through each rank. So for small arrays the server
# may win, and for large ones the ring.

# %% [markdown] exercise="crossover"
# ## Exercise: predict the crossover
# goal: Guess from which size on the ring is faster than the server, on 4 ranks of this machine.
# minutes: 4
# difficulty: 2
# importance: useful
#
# Write your guess in KiB.

# %% solution="crossover"
guess = None  # KiB
### BEGIN SOLUTION
guess = 64
### END SOLUTION

# %% check="crossover" points=1
from hvdlab.predict import predict

prediction = predict("crossover", guess, "KiB", "From which size on is the ring faster than the server?")
with Check("predict the crossover") as check:
    check.value(guess, "your guess")
    check.that(guess > 0, "a size is a number above 0", f"You wrote {guess!r}.")

# %% [markdown]
# Each time is that of the slowest rank, repeated 7 times. Before the clock starts all ranks meet,
# so that nobody's being late is counted. MPI's own allreduce stands beside yours. Your functions
# use the engines' calls, which you can interrupt: they look for messages from Python, and may notice
# one up to 2 ms late. MPI waits inside MPI. So compare the server with the ring; the distance to
# MPI is partly our watching.

# %%
# %%px
import time


def clock(comm, function, count, repeats=7):
    """Seconds of each repeat on this rank; the first call, which warms up, is left out."""
    data, times = np.ones(count), []
    for _ in range(repeats + 1):
        data[:] = 1
        comm.barrier()
        start = time.perf_counter()
        function(comm, data)
        times.append(time.perf_counter() - start)
    return times[1:]


def mpi_allreduce(comm, data):
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, data)  # MPI's own, without our watching


# %%
from hvdlab.timing import Timing, clearly_less, slowest

sizes = [2**k for k in range(10, 24, 2)]  # bytes
written = {"server": server, "ring": ring}
functions = {name: f"{name}_allreduce" for name, found in written.items() if found and all(found.right)}
functions["MPI"] = "mpi_allreduce"
measured = {}
for members in (2, 4):
    ranks.run(f"part = comm.Split(0 if comm.rank < {members} else 1)")
    for name, function in functions.items():
        ranks.push(took=None)
        timed = f"[clock(part, {function}, size // 8) for size in {sizes}]"
        ranks.run(f"took = {timed} if comm.rank < {members} else []", limit=120)  # the others rest
        took = ranks.pull("took")[:members]
        if None in took:
            raise RuntimeError(f"{function} did not end on {members} ranks: see above who waits for whom")
        for size, rows in zip(sizes, zip(*took)):
            measured[members, name, size] = slowest(rows)

# %% [markdown]
# Shared memory is what hvdlite uses inside one machine: no messages at all. Between GPUs it uses NCCL,
# if you have two. Both run in ranks of their own here, started with `horovod.run`.

# %%
import horovod

from hvdlab.compare.machine import gpus


def of_hvdlite(sizes, repeats, device):
    """By number of ranks, the times of each size on this rank; the first two ranks are a set."""
    import time

    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(hvd.local_rank())
    groups = {hvd.size(): hvd.global_process_set}
    if hvd.size() > 2:
        groups[2] = hvd.add_process_set([0, 1])
    times = {}
    for members, group in groups.items():
        for size in sizes if group.included() else []:
            data, row = torch.ones(size // 4, device=device), []
            for repeat in range(repeats + 1):
                hvd.barrier(process_set=group)
                start = time.perf_counter()
                hvd.allreduce_(data, op=hvd.Sum, name="timed", process_set=group)
                if on_gpu:
                    torch.cuda.synchronize()  # the call has only put it into the GPU's queue
                row.append(time.perf_counter() - start)
            times.setdefault(members, []).append(row[1:])
    return times


def measure(name, device, number):
    found = horovod.run(of_hvdlite, (sizes, 7, device), np=number)
    for members in found[0]:
        for size, rows in zip(sizes, zip(*[one[members] for one in found[:members]])):
            measured[members, name, size] = slowest(rows)


measure("shared memory", "cpu", 4)
if len(gpus()) >= 2:
    measure("NCCL", "cuda", 4 if len(gpus()) >= 4 else 2)

# %%
def bus_bandwidth(timing, size, members):
    """GB/s that each rank would have to move in the best of all algorithms."""
    return 2 * (members - 1) / members * size / timing.middle / 1e9


from os import sched_getaffinity

cores = len(sched_getaffinity(0))
kib = [size / 1024 for size in sizes]
fig, axes = style.figure(columns=2, width=5.4, height=4.2)
names = {m: [name for count, name, size in measured if (count, size) == (m, sizes[0])] for m in (2, 4)}
for axis, members in zip(axes, (2, 4)):
    for name in names[members]:
        rows = [measured[members, name, size] for size in sizes]
        low, high = ([bus_bandwidth(Timing((edge,)), size, members) for edge, size in zip(edges, sizes)]
                     for edges in ([r.high for r in rows], [r.low for r in rows]))
        line = axis.loglog(kib, [bus_bandwidth(r, s, members) for r, s in zip(rows, sizes)], "o-", markersize=4, label=name)
        axis.fill_between(kib, low, high, color=line[0].get_color(), alpha=0.2)
    axis.set_xticks(kib, [f"{size:g}" for size in kib])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.legend(fontsize=8, frameon=False)
    crowded = f" on {cores} cores" if members > cores else ""
    style.label(axis, f"{members} ranks{crowded}", "size of the array (KiB)", "bus bandwidth (GB/s)")
axes[1].set_ylim(axes[0].get_ylim())
best = {m: max(names[m], key=lambda name: bus_bandwidth(measured[m, name, sizes[-1]], sizes[-1], m)) for m in (2, 4)}
style.show(
    fig,
    "Bus bandwidth over the size of the array, with bands for the spread of 7 repeats. At "
    f"{sizes[-1] / 2**20:.0f} MiB the fastest is {best[2]} on 2 ranks and {best[4]} on 4.",
)

# %% [markdown]
# ## So where do they cross?
#
# A statement counts only where the spreads of the two don't overlap.

# %%
if {"server", "ring"} <= set(functions):
    verdicts = [clearly_less(measured[4, "ring", size], measured[4, "server", size]) for size in sizes]
    for size, verdict in zip(sizes, verdicts):
        ours, theirs = measured[4, "ring", size], measured[4, "server", size]
        word = {True: "the ring is faster", False: "the server is faster", None: "the noise hides it"}[verdict]
        print(f"{size / 1024:>6.0f} KiB   ring {str(ours):<34} server {str(theirs):<34} {word}")
    clear = [size for size, verdict in zip(sizes, verdicts) if verdict]
    from_there = [size for size in clear if False not in verdicts[sizes.index(size) :]]
    if from_there:
        prediction.reveal(min(from_there) / 1024)
    elif False in verdicts:
        print(f"They don't cross up to {sizes[-1] / 2**20:g} MiB here: the server is clearly faster at "
              f"{verdicts.count(False)} of {len(sizes)} sizes.")
    else:
        print("No conclusion: on this machine, now, the noise is larger than the difference.")
else:
    print("Finish the server and the ring, then run this cell again.")

# %% [markdown]
# **Question.** All four ranks of this lab live in one machine, with one memory. Where is the
# server's bottleneck then, and why does the ring win little here, or not at all?
#
# <details><summary>Answer</summary>
#
# There is no network link that only the server uses. All ranks share the memory and, with more
# ranks than cores, the cores: the others' work is not done at the same time, it waits for a core.
# On several machines, each with its own link, the bytes through the busiest rank decide.
# And the ring needs 2 N (N - 1) messages in all, the server 2 (N - 1): each costs a core some time.
# The count above is what you can carry over to them; the times are not.
# </details>

# %%
engines.stop()

# %% [markdown]
# ## Summary
#
# - A parameter server moves 2 (N - 1) arrays through one rank; a ring 4 (N - 1) / N through each.
# - The ring's price hardly grows with the ranks. It pays with N times as many messages.
# - A right sum does not make a ring: count what is sent.
# - Times need repeats and a spread. Where the spreads overlap, there is no conclusion.
#
# ### If you have time left
#
# 1. Write an allreduce that passes the *whole* array around the circle, size - 1 times, and adds up
#    what arrives. Replay it. What does the check of the ring say, and why is the sum right?
# 2. Write a tree: in each step the ranks with a partner send to it and rest. How many steps, how
#    many bytes through the busiest rank?
# 3. Let each worker be the server of one chunk. What do you get? Replay it, and compare its steps
#    with the ring's.
