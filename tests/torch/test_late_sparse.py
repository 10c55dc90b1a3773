"""Gradients that turn out sparse, or leave the buffer, only later or on some ranks only."""


def _late_sparse(name: str) -> bool:
    """Nobody looks anything up at first; then one rank does, and then both."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    table = torch.nn.Embedding(6, 2, sparse=True)
    other = torch.nn.Linear(2, 1)
    params = [*table.parameters(), *(other.parameters() if name == "SGD" else [])]
    optimizer = hvd.DistributedOptimizer(getattr(torch.optim, name)(params, lr=0.1))
    lookups = [([], []), ([], []), ([1, 2], []), ([3], [3]), ([], [4])]
    for parts in lookups:
        optimizer.zero_grad()
        loss = other(torch.ones(1, 2)).sum()
        if parts[hvd.rank()]:
            loss = loss + table(torch.tensor(parts[hvd.rank()])).square().sum()
        loss.backward()
        optimizer.step()
    both = hvd.allgather(table.weight.detach().reshape(1, -1))
    start = torch.nn.Embedding(6, 2)
    torch.manual_seed(0)
    start = torch.nn.Embedding(6, 2).weight
    moved = (table.weight != start).any(1).tolist()
    return torch.equal(both[0], both[1]) and moved == [False, True, True, True, True, False]


def test_a_gradient_becomes_sparse_on_one_rank_first(ranks):
    assert ranks(2).run(_late_sparse, "SGD") == [True, True]
    assert ranks(2).run(_late_sparse, "SparseAdam") == [True, True]


def _changed_before_step() -> list[bool]:
    """What the program does to a large gradient before step() counts, on every rank."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    good = []
    for count in (300_000, 1_200_001):
        weight = torch.nn.Parameter(torch.zeros(count))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        for _ in range(3):
            optimizer.zero_grad()
            (weight.sum() * (hvd.rank() + 1)).backward()
            weight.grad.data.mul_(2)
            optimizer.step()
        # The mean of 2 and 4, three times.
        good.append(bool((weight == -9.0).all()))
        optimizer.zero_grad(set_to_none=False)
        (weight.sum() * (hvd.rank() + 1)).backward()
        optimizer.synchronize()
        good.append(bool((weight.grad == 1.5).all()))
    return good


def test_a_large_gradient_changed_before_the_step(ranks):
    assert ranks(2).run(_changed_before_step) == [[True] * 4] * 2


def _halves_between_hosts() -> list[float]:
    import os

    import torch

    import hvdlite.torch as hvd

    os.environ["HVDLITE_RANKS_PER_HOST"] = "2"
    hvd.shutdown()
    hvd.init()
    weight = torch.nn.Parameter(torch.zeros(100))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), compression=hvd.Compression.fp16
    )
    weight.grad = torch.full((100,), 40000.0)
    optimizer.synchronize()
    del os.environ["HVDLITE_RANKS_PER_HOST"]
    hvd.shutdown()
    return [weight.grad.min().item(), weight.grad.max().item()]


def test_halves_are_added_in_single_precision_between_hosts_too(ranks):
    assert ranks(4).run(_halves_between_hosts) == [[40000.0, 40000.0]] * 4
