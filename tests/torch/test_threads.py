"""Interrupts at any moment, and several threads that make collectives."""

import pytest
from mpi import TORCH, launch
from twin import choose, restore

START = """
import os, random, signal, sys, threading, time
import torch
import hvdlite.torch as hvd
hvd.init()
rank = hvd.rank()

def interrupt(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
"""


def _run(body: str, env: dict[str, str] | None = None, modules: tuple[str, ...] = TORCH):
    outcome = launch(START + body, 2, env=env, modules=modules)
    assert outcome.returncode == 0, outcome
    return outcome


@pytest.mark.parametrize("way", ["hvd.synchronize(b)", "poll(b)", "hvd.join()"])
def test_an_interrupt_of_asynchronous_calls(way):
    outcome = _run(
        f"""
def poll(handle):
    while not hvd.poll(handle):
        time.sleep(0.001)

a = hvd.allreduce_async(torch.ones(2), name="a")
told = ""
try:
    if rank == 0:
        b = hvd.allreduce_async(torch.ones(3), name="b")
        interrupt(0.5)
        {way}
    else:
        hvd.synchronize(a)
        time.sleep(1)
        hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="c"))
except KeyboardInterrupt:
    told = "interrupt"
except hvd.HorovodInternalError as error:
    told = str(error)
# Whether the interrupt came inside a call of hvdlite's or between two, all learn of it.
hvd.shutdown()
hvd.init()
print(rank, "then", hvd.allreduce(torch.ones(2), name="a", op=hvd.Sum).tolist(), told, flush=True)
"""
    )
    zero, one = sorted(outcome.stdout.splitlines())
    assert zero == "0 then [2.0, 2.0] interrupt", outcome
    assert one.startswith("1 then [2.0, 2.0] "), outcome
    assert "rank 0 was interrupted in" in one or "rank 0 has called shutdown()" in one, outcome


@pytest.mark.parametrize("algorithm", ["shm", "mpi"])
def test_interrupts_at_random_moments_of_training(algorithm):
    outcome = _run(
        """
moments = random.Random(7)
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3))
large = torch.ones(300_000)
counts = [0, 0]
for attempt in range(25):
    try:
        if rank == 0:
            interrupt(moments.uniform(0, 0.05))
        # Python itself loses an interrupt that comes in a finalizer, so there is an end without.
        end = time.monotonic() + 1
        while rank == 1 or time.monotonic() < end:
            model.zero_grad()
            model(torch.ones(1, 300)).sum().backward()
            optimizer.step()
            hvd.allreduce(large)
            hvd.allgather(torch.ones(rank + 1))
            hvd.broadcast_object({"step": attempt})
    except (KeyboardInterrupt, hvd.HorovodInternalError) as error:
        counts[isinstance(error, KeyboardInterrupt)] += 1
    hvd.shutdown()
    hvd.init()
    optimizer.load_state_dict(optimizer.state_dict())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
    assert hvd.broadcast_object(attempt, 1) == attempt
assert counts[0] == 25 if rank == 1 else counts[0] == 0 and counts[1] > 20, counts
print("caught", flush=True)
""",
        {"HVDLITE_ALLREDUCE": algorithm},
    )
    assert outcome.stdout.splitlines() == ["caught"] * 2, outcome


def test_an_error_in_one_of_two_threads():
    """The other thread goes on; who waits for the first one is told in the end."""
    outcome = _run(
        """
sums, told = [], []

def steady():
    for i in range(200):
        sums.append(hvd.allreduce(torch.full((500,), i), name=f"steady{i}", op=hvd.Sum)[0].item())

def failing():
    threading.excepthook = lambda args: print(f"{rank} raised {args.exc_value!r}", flush=True)
    for i in range(10):
        try:
            hvd.allreduce(torch.ones(2 + (rank == 1 and i == 3)), name=f"failing{i}")
        except hvd.HorovodInternalError as error:
            told.append(str(error))
        if rank == 1 and i == 5:
            raise KeyError("no such layer")

threads = [threading.Thread(target=steady), threading.Thread(target=failing)]
for thread in threads:
    thread.start()
threads[0].join()
print(rank, "sums", sums == [2 * i for i in range(200)], flush=True)
if rank == 1:
    sys.exit()
threads[1].join()
assert len(told) >= 2, told
assert "the ranks disagree on the shape" in told[0], told
assert "allreduce 'failing6' can't finish: rank 1 has ended its program" in told[1], told
print("0 told", flush=True)
"""
    )
    said = sorted(outcome.stdout.splitlines())
    expected = ["0 sums True", "0 told", "1 raised KeyError('no such layer')", "1 sums True"]
    assert said == expected, outcome


def _many(algorithm: str) -> list[str]:
    """Eight threads, each with names and sizes of its own; what was wrong."""
    import threading

    import torch

    import hvdlite.torch as hvd

    choose(algorithm)
    size, rank, wrong = hvd.size(), hvd.rank(), []
    sizes = [1, 3, 1000, 9000, 70_000, 200_001, 0, 17]

    def work(number: int) -> None:
        try:
            for i in range(15):
                mine = torch.full((sizes[number],), float(number + i + rank))
                name = f"thread{number}.{i}"
                handle = hvd.allreduce_async(mine, name=name, op=hvd.Sum)
                gathered = hvd.allgather(torch.tensor([rank * number]), name=name)
                if gathered.tolist() != [r * number for r in range(size)]:
                    wrong.append(f"{name}: {gathered}")
                right = torch.full_like(mine, size * (number + i) + sum(range(size)))
                if not torch.equal(hvd.synchronize(handle), right):
                    wrong.append(name)
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("algorithm", ["shm", "mpi", "ring", "hierarchical/2"])
@pytest.mark.parametrize("np", [2, 3])
def test_many_threads(ranks, np, algorithm):
    try:
        assert ranks(np).run(_many, algorithm) == [[]] * np
    finally:
        ranks(np).run(restore)


def _two_sets() -> list[float]:
    """Each thread makes its calls on a process set of its own."""
    import threading

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    sets = [hvd.global_process_set, hvd.add_process_set([0, 1])]
    totals = [0.0, 0.0]

    def work(number: int) -> None:
        if sets[number].included():
            for i in range(50):
                part = torch.full((100,), float(i))
                totals[number] += hvd.allreduce(
                    part, op=hvd.Sum, name=f"step{i}", process_set=sets[number]
                )[0].item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hvd.remove_process_set(sets[1])
    return totals


def test_threads_with_process_sets_of_their_own(ranks):
    total = sum(range(50))
    assert ranks(3).run(_two_sets) == [[3 * total, 2 * total]] * 2 + [[3 * total, 0]]


def test_init_costs_no_processor_time_and_changes_no_threads():
    outcome = _run(
        """
before = time.process_time()
threads = torch.get_num_threads()
time.sleep(2)
print("idle", time.process_time() - before, flush=True)
print("threads", threading.active_count(), torch.get_num_threads() == threads, flush=True)
""",
        {"OMP_NUM_THREADS": "2"},
        modules=(),
    )
    idle = [float(line.split()[1]) for line in outcome.stdout.splitlines() if "idle" in line]
    assert max(idle) < 0.2, outcome  # processor time, of 2 s
    assert outcome.stdout.count("threads 1 True") == 2, outcome
