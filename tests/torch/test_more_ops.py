"""alltoall, reducescatter, join, process sets and SyncBatchNorm."""

import pytest


def _alltoall() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    wrong = []
    for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64):
        # Rank r sends r + s + 1 rows of value 10 r + s to rank s.
        parts = [torch.full((rank + s + 1, 2), 10 * rank + s) for s in range(size)]
        splits = [len(part) for part in parts]
        mine = torch.cat(parts).to(dtype)
        got, received = hvd.alltoall(mine, torch.tensor(splits, dtype=torch.int32))
        right = torch.cat([torch.full((s + rank + 1, 2), 10 * s + rank) for s in range(size)])
        if not torch.equal(got, right.to(dtype)) or received.tolist() != [
            s + rank + 1 for s in range(size)
        ]:
            wrong.append(f"{dtype}: {got} {received}")
    even = hvd.alltoall(torch.arange(2 * size))
    if even.tolist() != [2 * rank, 2 * rank + 1] * size:
        wrong.append(f"without splits: {even}")
    x = torch.ones(sum(splits), 2, requires_grad=True)
    out, _ = hvd.alltoall(x, splits)
    (out.sum() * (rank + 1)).backward()
    # What went to rank s comes back with its weight, s + 1.
    weights = torch.cat([torch.full((n, 2), s + 1.0) for s, n in enumerate(splits)])
    if not torch.equal(x.grad, weights):
        wrong.append(f"gradient {x.grad}")
    for bad in ([1], [1] * size, [-1, *splits[1:]], torch.ones(size)):
        try:
            hvd.alltoall(torch.ones(size + 1), bad)
            wrong.append(f"splits {bad} were accepted")
        except ValueError:
            pass
    return wrong


@pytest.mark.parametrize("np", [2, 3])
def test_alltoall(ranks, np):
    assert ranks(np).run(_alltoall) == [[]] * np


def _reducescatter() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    wrong = []
    for rows in (0, 1, size, 2 * size + 1, 50_000 * size + 1):
        for op, factor in ((hvd.Sum, sum(range(1, size + 1))), (hvd.Average, (size + 1) / 2)):
            whole = torch.arange(rows * 2, dtype=torch.float32).view(rows, 2)
            counts = [rows // size + (i < rows % size) for i in range(size)]
            start = sum(counts[:rank])
            right = whole[start : start + counts[rank]] * factor
            got = hvd.reducescatter(whole * (rank + 1), op=op)
            if not torch.allclose(got, right):
                wrong.append(f"{rows} rows, op {op}: {got[:3]} instead of {right[:3]}")
    x = torch.ones(size + 1, requires_grad=True)
    (hvd.reducescatter(x, op=hvd.Sum).sum() * (rank + 1)).backward()
    owners = torch.tensor([1.0, 1.0, *range(2, size + 1)]) * size
    if not torch.equal(x.grad, owners):
        wrong.append(f"gradient {x.grad}")
    many = hvd.grouped_reducescatter([torch.ones(size), torch.ones(size, 2).int()], op=hvd.Sum)
    if [t.flatten().tolist() for t in many] != [[size], [size, size]]:
        wrong.append(f"grouped {many}")
    return wrong


@pytest.mark.parametrize("np", [2, 3])
def test_reducescatter(ranks, np):
    assert ranks(np).run(_reducescatter) == [[]] * np


def _join_while_training(first: int) -> list:
    """The rank `first` runs out of data; the others go on with an optimizer and allreduces."""
    import time

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    seen = []
    for step in range(4):
        if rank == first and step == 2:
            break
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        handle = hvd.allreduce_async(torch.ones(3))  # under way with the gradients
        optimizer.step()
        assert round(float(size * hvd.synchronize(handle)[0])) in (size, size - 1)
        seen.append(round(model.weight[0, 0].item(), 4))
        hvd.allreduce_(torch.ones(200_000))
    if rank == size - 1 and first != size - 1:
        time.sleep(0.3)
    last = hvd.join()
    unnamed = hvd.allreduce(torch.ones(2), op=hvd.Sum)[0].item()  # the counters agree again
    return [seen, last, unnamed]


@pytest.mark.parametrize(("np", "first"), [(2, 0), (2, 1), (3, 1)])
def test_join_goes_along_with_zeros(ranks, np, first):
    results = ranks(np).run(_join_while_training, first)
    step = (np - 1) / np
    for rank, (seen, last, unnamed) in enumerate(results):
        expected = [0.0, -1.0] + ([] if rank == first else [-1 - step, -1 - 2 * step])
        assert seen == pytest.approx(expected, abs=1e-3)
        assert last != first and last == results[0][1]
        assert unnamed == np


def _join_first_thing() -> list:
    """A rank that joins before its first step, and a second kind of call that can't go on."""
    import torch

    import hvdlite.torch as hvd

    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:
        return [hvd.join(), 0, ""]
    model = torch.nn.Linear(2, 1)
    model.weight.data.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    message = ""
    try:
        hvd.allgather(torch.ones(2))
    except hvd.HorovodInternalError as error:
        message = str(error)
    return [hvd.join(), model.weight[0, 0].item(), message]


def test_join_before_the_first_step(ranks):
    (last, weight, message), (other_last, *_) = ranks(2).run(_join_first_thing)
    assert last == other_last == 0
    assert weight == 0.0  # two steps of half a gradient
    assert "rank 1 called join()" in message and "only allreduce and barrier" in message


def _process_sets() -> list:
    """X = ranks 0 and 2, Y = rank 1: each on its own, then all together."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    x, y = hvd.add_process_set([0, 2]), hvd.add_process_set(hvd.ProcessSet([1]))
    good = []
    message = ""
    if x.included():
        for i in range(20):
            total = hvd.allreduce(torch.full((3,), float(rank + i)), op=hvd.Sum, process_set=x)
            good.append(total[0].item() == 2 + 2 * i)
        model = torch.nn.Linear(2, 2, bias=False)
        model.weight.data.fill_(1.0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), process_set=x
        )
        model(torch.full((1, 2), float(rank))).sum().backward()
        optimizer.step()
        good.append(model.weight[0, 0].item() == 0.0)  # 1 - (0 + 2) / 2
        good.append(hvd.broadcast(torch.tensor(rank), 2, process_set=x).item() == 2)
        good.append(x.rank() == (0 if rank == 0 else 1) and x.size() == 2)
        gathered = hvd.allgather_object(rank, process_set=x)
        good.append(gathered == [0, 2])
    else:
        for _ in range(7):
            good.append(hvd.allreduce(torch.ones(2), process_set=y)[0].item() == 1)
        try:
            hvd.allreduce(torch.ones(2), process_set=x)
        except ValueError as error:
            message = str(error)
    good.append(hvd.allreduce(torch.ones(2), op=hvd.Sum)[0].item() == 3)
    good.append(hvd.remove_process_set(x) and not hvd.remove_process_set(hvd.global_process_set))
    again = hvd.add_process_set([2, 0])
    if again.included():
        good.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item() == 2)
    for bad in ([0, 7], [0, 0], [], [0, 2]):
        try:
            hvd.add_process_set(bad)
            good.append(False)
        except ValueError:
            pass
    try:
        x.size()
        good.append(False)
    except ValueError:
        pass
    hvd.shutdown()
    return [all(good), message]


def test_process_sets(ranks):
    (zero, _), (one, message), (two, _) = ranks(3).run(_process_sets)
    assert zero and one and two
    assert "rank 1 is not in" in message and "included()" in message


def _sync_batch_norm(track: bool, dims: int) -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    shape = [8, 3, *[4] * dims]
    torch.manual_seed(0)
    whole = torch.randn(shape).double()
    part = slice(0, 3) if rank == 0 else slice(3, 8)
    plain_kind = [torch.nn.BatchNorm1d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d][dims]
    plain = plain_kind(3, track_running_stats=track).double()
    ours = hvd.SyncBatchNorm(3, track_running_stats=track).double()
    for layer in (plain, ours):
        layer.weight.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
    weights = torch.randn(shape).double()
    x, z = whole[part].clone().requires_grad_(), whole.clone().requires_grad_()
    for _ in range(2):
        x.grad = z.grad = None
        out, right = ours(x), plain(z)
        (out * weights[part]).sum().backward()
        (right * weights).sum().backward()
    good = [torch.allclose(out, right[part]), torch.allclose(x.grad, z.grad[part])]
    if track:
        good.append(torch.allclose(ours.running_mean, plain.running_mean))
        good.append(torch.allclose(ours.running_var, plain.running_var))
    total = hvd.allreduce(ours.weight.grad, op=hvd.Sum)
    good.append(torch.allclose(total, plain.weight.grad))
    if rank == 0 and track:  # alone, and nobody waits
        ours.eval()
        plain.eval()
        good.append(torch.allclose(ours(whole), plain(whole)))
    hvd.barrier()
    return good


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("dims", [0, 2])
def test_sync_batch_norm(ranks, track, dims):
    for good in ranks(2).run(_sync_batch_norm, track, dims):
        assert all(good), good
