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
