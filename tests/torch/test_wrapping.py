"""What an optimizer that is wrapped leaves behind, and what it says when it is used wrongly."""

import pytest
from training import all_weights, small_model


def _hooks(model) -> int:
    return sum(len(param._post_accumulate_grad_hooks or ()) for param in model.parameters())


def _again_and_again() -> list:
    """A cell that wraps the same model, run again and again, whose optimizers stay alive."""
    import gc

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model, kept = small_model(), []
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        kept.append(optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 4) * (1 + hvd.rank())).square().sum().backward()
            optimizer.step()
    hooks = [_hooks(model)]
    # An earlier one is used again, and then the last one.
    for optimizer in (kept[0], kept[-1], kept[0]):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 4) * (1 + hvd.rank())).square().sum().backward()
            optimizer.step()
    hooks.append(_hooks(model))
    kept.clear()
    del optimizer
    gc.collect()
    hooks.append(_hooks(model))
    both = hvd.allgather(torch.tensor([all_weights(model)]))
    return [*hooks, torch.equal(both[0], both[1])]


def test_the_last_optimizer_of_a_model_takes_over(ranks):
    assert ranks(2).run(_again_and_again) == [[4, 4, 0, True]] * 2


def _interrupted() -> bool:
    """An interrupt while this rank waits in step(), another start, and the same optimizer."""
    import os
    import signal
    import threading
    import time

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    if hvd.rank() == 0:

        def interrupt():
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    else:
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(1), name="elsewhere")
    hvd.shutdown()
    hvd.init()
    for _ in range(2):
        model(torch.ones(1, 4) * (1 + hvd.rank())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    both = hvd.allgather(model[0].weight.detach().view(1, -1))
    return torch.equal(both[0], both[1])


def test_the_same_optimizer_after_an_interrupt(ranks):
    assert ranks(2).run(_interrupted) == [True, True]


def _patched_step() -> list:
    """What profilers and libraries put in the place of `step` is called, and can be taken away."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain)
    called, step = [], optimizer.step

    def patched(*args):
        called.append(1)
        return step(*args)

    for way in (patched, None):
        if way:
            optimizer.step = patched
        else:
            del optimizer.step
        optimizer.zero_grad()
        model(torch.ones(1, 4) * (1 + hvd.rank())).square().sum().backward()
        optimizer.step()
    torch.optim.lr_scheduler.StepLR(plain, 1)  # patches the plain optimizer, as all schedulers do
    optimizer.zero_grad()
    model(torch.ones(1, 4) * (1 + hvd.rank())).square().sum().backward()
    optimizer.step()
    both = hvd.allgather(torch.tensor([all_weights(model)]))
    return [len(called), torch.equal(both[0], both[1])]


def test_a_step_that_is_replaced(ranks):
    assert ranks(2).run(_patched_step) == [[1, True]] * 2


def _advice(case: str) -> str:
    """What the assertion says to one of the ways to compute gradients too often, or lose them."""
    import torch
    from torch.utils.checkpoint import checkpoint

    import hvdlite.torch as hvd

    hvd.init()
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    x = torch.ones(2, 3)
    one = hvd.DistributedOptimizer(torch.optim.SGD(first.parameters(), lr=0.1))
    other = hvd.DistributedOptimizer(torch.optim.SGD(second.parameters(), lr=0.1))

    def two_losses():
        first(x).sum().backward()
        first(x).square().sum().backward()

    def step_left_out():
        first(x).sum().backward()
        one.zero_grad()

    def through_both():
        second(first(x)).sum().backward()
        other.step()
        one.zero_grad()

    def through_both_twice():
        second(first(x)).sum().backward()
        other.step()
        first(x).sum().backward()

    def reentrant():
        y = checkpoint(first, x.requires_grad_(), use_reentrant=True)
        checkpoint(first, y, use_reentrant=True).sum().backward()

    with pytest.raises(AssertionError) as error:
        locals()[case]()
    told = str(error.value)
    if case == "step_left_out":  # as the message says
        one.synchronize()
        one.zero_grad()
        first(x).sum().backward()
        one.step()
    return told


CASES = {
    "two_losses": "call backward() once, on their sum. Raise backward_passes_per_step",
    "step_left_out": "To leave out a step, call optimizer.synchronize() in its place",
    "through_both": "Another DistributedOptimizer has stepped since",
    "through_both_twice": "Another DistributedOptimizer has stepped since",
    "reentrant": "use_reentrant=False",
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_has_its_advice(ranks, case):
    for told in ranks(2).run(_advice, case):
        assert CASES[case] in told
        assert sum(text in told for text in set(CASES.values())) == 1


def _models_that_differ(case: str) -> str:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    if case == "shape":
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1 + rank))
    elif case == "number":
        model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(2 + rank)))
    else:
        model = torch.nn.Linear(3, 3).to(torch.float64 if rank else torch.float32)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    x = torch.ones(2, 3, dtype=next(model.parameters()).dtype)
    model(x).sum().backward()
    with pytest.raises(hvd.HorovodInternalError) as error:
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0  # the ranks go on
    return str(error.value)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (
            "shape",
            "gradient 3 is '1.weight', float32 of shape (1, 8), on rank 0; "
            "'1.weight', float32 of shape (2, 8), on rank 1.",
        ),
        ("number", "is missing on rank 0; '2.weight', float32 of shape (3, 3), on rank 1."),
        ("dtype", "'weight', float32 of shape (3, 3), on rank 0; 'weight', float64 of shape"),
    ],
)
def test_models_that_differ_are_told_by_their_parameters(ranks, case, expected):
    zero, one = ranks(2).run(_models_that_differ, case)
    assert zero == one
    assert expected in zero and "Build the same model on every rank" in zero
