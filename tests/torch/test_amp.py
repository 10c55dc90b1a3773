"""torch.amp.GradScaler: all ranks leave out a step together, and train as one process would."""

import pytest
from training import all_weights, check_equal, make_batches, small_model

ORDERS = ["plain", "unscale", "documented", "fused"]


def _train(order: str, overflows: list[int], scale: float) -> tuple[list, list, list]:
    """A loop with a scaler; at step 2 the loss is infinite on the ranks in `overflows`."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    ours, alone = small_model(), small_model()
    options = {"lr": 0.1, "fused": True} if order == "fused" else {"lr": 0.1}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), **options), ours.named_parameters()
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=scale) for _ in range(2))
    for step, batch in enumerate(make_batches(5, hvd.size())):
        factors = [float("inf") if step == 2 and i in overflows else 1.0 for i in (0, 1)]
        optimizer.zero_grad()
        scaler.scale(ours(batch[rank]).square().mean() * factors[rank]).backward()
        if order == "unscale":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
            scaler.step(optimizer)
        elif order == "documented":
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        plain.zero_grad()
        loss = sum(alone(batch[i]).square().mean() * factors[i] for i in (0, 1)) / 2
        other.scale(loss).backward()
        other.unscale_(plain)
        if order in ("unscale", "documented"):
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        other.step(plain)
        other.update()
    return all_weights(ours), all_weights(alone), [scaler.get_scale(), other.get_scale()]


@pytest.mark.parametrize("overflows", [[], [1], [0, 1]], ids=["none", "one", "all"])
@pytest.mark.parametrize("order", ORDERS)
def test_ranks_leave_out_a_step_together(ranks, order, overflows):
    results = ranks(2).run(_train, order, overflows, 1024.0)
    check_equal([(ours, alone) for ours, alone, _ in results])
    for _, _, (scale, alone) in results:
        assert scale == alone == (512.0 if overflows else 1024.0)


def _default_scale() -> list:
    """The first steps overflow in half precision on rank 1, whose batch has the large numbers."""
    import warnings

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = torch.nn.Linear(4, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    start = all_weights(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters()
    )
    scaler = torch.amp.GradScaler("cpu")
    scales = []
    x = torch.ones(8, 4) * (1.0 + 9 * hvd.rank())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(16):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    return [scales, all_weights(model), all_weights(model) != start]


def test_the_default_scale_comes_down_on_all_ranks_alike(ranks):
    zero, one = ranks(2).run(_default_scale)
    scales, _, moved = zero
    assert zero == one
    assert scales[-1] < scales[0] < 65536.0 and moved


def _adasum() -> str:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    with pytest.raises(NotImplementedError) as error:
        scaler.step(optimizer)
    return str(error.value)


def test_adasum_takes_no_scaler(ranks):
    for told in ranks(2).run(_adasum):
        assert "Use bfloat16" in told
