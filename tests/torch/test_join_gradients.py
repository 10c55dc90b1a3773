"""Gradients in shared memory and a rank that has joined: its row counts as zeros."""

import pytest


def _train(per_host: str) -> list[float]:
    """A step of all ranks, then one of all but the last, which is slow to go along."""
    import os

    import torch

    import hvdlite.torch as hvd
    from hvdlite import testing

    os.environ["HVDLITE_RANKS_PER_HOST"] = per_host
    hvd.shutdown()
    hvd.init()
    param = torch.nn.Parameter(torch.zeros(1000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Sum)
    (param * 8).sum().backward()
    optimizer.step()
    if hvd.rank() == hvd.size() - 1:
        with testing.slow_rank(0.2):
            hvd.join()
    else:
        optimizer.zero_grad()
        param.sum().backward()
        optimizer.step()
        hvd.join()
    del os.environ["HVDLITE_RANKS_PER_HOST"]
    hvd.shutdown()
    return param.detach().unique().tolist()


@pytest.mark.parametrize(("np", "per_host"), [(2, ""), (3, ""), (3, "2"), (4, "2")])
def test_a_row_is_cleared_before_it_is_read(ranks, np, per_host):
    first = -8.0 * np
    *others, last = ranks(np).run(_train, per_host)
    assert others == [[first - (np - 1)]] * (np - 1)
    assert last == [first]


def _forgotten_optimizers(count: int) -> list[float]:
    """After its join, rank 1 has none of its optimizers left; rank 0 uses the first and last."""
    import gc

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    params = [torch.nn.Parameter(torch.zeros(10)) for _ in range(count)]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Sum) for param in params
    ]
    for param, optimizer in zip(params, optimizers, strict=True):
        param.sum().backward()
        optimizer.step()
    if hvd.rank() == 1:
        del param, params, optimizer, optimizers
        gc.collect()
        hvd.join()
        return []
    for i in (0, -1):
        optimizers[i].zero_grad()
        params[i].sum().backward()
        optimizers[i].step()
    hvd.join()
    return [params[0][0].item(), params[-1][0].item()]


def test_a_rank_that_has_joined_needs_no_memory_of_earlier_gradients(ranks):
    own, _ = ranks(2).run(_forgotten_optimizers, 12)
    assert own == [-3.0, -3.0]
