"""How programs use DistributedOptimizer: clipping, closures, schedulers, saving, sparse layers."""

import pytest
from training import all_weights, check_equal, make_batches, small_model


def _clip() -> tuple[list, list, int, list]:
    """Clipping between synchronize() and step(), with and without the context."""
    import warnings

    import torch

    import hvdlite.torch as hvd
    from hvdlite import testing

    hvd.init()
    ours, alone = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.5))
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    told = []
    with testing.counted("allreduce_rows") as calls:
        for step, batch in enumerate(make_batches(4, hvd.size())):
            optimizer.zero_grad()
            plain.zero_grad()
            (ours(batch[hvd.rank()]) * 100).square().mean().backward()
            (alone(batch.flatten(0, 1)) * 100).square().mean().backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            if step % 2:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    optimizer.step()
                told += [str(warning.message) for warning in caught]
            plain.step()
    return all_weights(ours), all_weights(alone), len(calls), told


def test_clipping_sees_the_mean_gradient_which_travels_once(ranks):
    results = ranks(2).run(_clip)
    check_equal([(ours, alone) for ours, alone, _, _ in results])
    for _, _, calls, told in results:
        assert calls == 4
        assert len(told) == 2 and "skip_synchronize" in told[0]


def _closures(name: str) -> tuple[list, list, bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    options = {"lr": 0.1} if name == "SGD" else {"lr": 0.5, "line_search_fn": "strong_wolfe"}
    # In double precision, since LBFGS enlarges every difference.
    ours, alone = small_model().double(), small_model().double()
    kind = getattr(torch.optim, name)
    optimizer = hvd.DistributedOptimizer(kind(ours.parameters(), **options))
    plain = kind(alone.parameters(), **options)
    returned = []
    for batch in make_batches(3, hvd.size()):
        batch = batch.double()

        def closure(model=ours, opt=optimizer, data=batch[rank]):
            opt.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        returned.append(optimizer.step(closure) is not None)
        plain.step(lambda b=batch: closure(alone, plain, b.flatten(0, 1)))
    return all_weights(ours), all_weights(alone), all(returned)


@pytest.mark.parametrize("name", ["SGD", "LBFGS"])
def test_closures(ranks, name):
    results = ranks(2).run(_closures, name)
    check_equal([(ours, alone) for ours, alone, _ in results])
    assert all(returned for _, _, returned in results)


def _schedulers() -> list:
    """Schedulers made before and after wrapping; saving and plain loading."""
    import io
    import pickle
    import warnings

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    groups = plain.param_groups[0]
    before = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1**epoch)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scheduler in (before, after):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
    plateau.step(1.0)
    plateau.step(2.0)
    rates.append(optimizer.param_groups[0]["lr"])
    assert optimizer.param_groups[0] is groups and type(optimizer).__name__ == "SGD"
    # A saved optimizer loads without hvdlite.
    saved = io.BytesIO()
    torch.save({"optimizer": optimizer, "state": optimizer.state_dict()}, saved)
    data = saved.getvalue()
    assert b"hvdlite.torch.buckets" not in data
    copy = pickle.loads(pickle.dumps(optimizer))
    assert type(copy) is torch.optim.SGD and copy.param_groups[0]["lr"] == rates[-1]
    pickle.dumps(after.state_dict())
    # Loading a state makes new groups; training goes on.
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    model(torch.full((2, 4), float(hvd.rank()))).sum().backward()
    optimizer.step()
    gathered = hvd.allgather(torch.tensor([all_weights(model)]))
    return [*rates, torch.equal(gathered[0], gathered[1])]


def test_schedulers_and_saving(ranks):
    for *rates, equal in ranks(2).run(_schedulers):
        assert rates == pytest.approx([0.5, 0.1, 0.01])
        assert equal


def _zero_grad() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 2), "some": torch.nn.Linear(2, 2)})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    for arguments in ({}, {"set_to_none": True}, {"set_to_none": False}):
        loss = model["used"](torch.ones(1, 2)).sum()
        if hvd.rank() == 0:
            loss = loss + model["some"](torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(**arguments)
        seen.append(model["used"].weight.grad is None)
    model["used"](torch.ones(1, 2)).sum().backward()
    try:
        optimizer.zero_grad()
        seen.append("not refused")
    except AssertionError as error:
        seen.append(str(error))
    optimizer.step()
    model.zero_grad()
    return seen


def test_zero_grad_takes_torchs_argument_and_refuses_to_lose_gradients(ranks):
    for default, to_none, to_zero, refusal in ranks(2).run(_zero_grad):
        assert (default, to_none, to_zero) == (True, True, False)
        assert "before backward() or after step()" in refusal


def _sparse(name: str, as_dense: bool) -> tuple[list, list]:
    """An embedding with sparse gradients; on one step rank 1 looks up nothing."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()

    def build():
        torch.manual_seed(2)
        return torch.nn.Embedding(6, 2, sparse=True)

    ours, alone = build(), build()
    kind = getattr(torch.optim, name)
    optimizer = hvd.DistributedOptimizer(
        kind(ours.parameters(), lr=0.1), ours.named_parameters(), sparse_as_dense=as_dense
    )
    plain = kind(alone.parameters(), lr=0.1)
    lookups = [([0, 1, 1], []), ([0, 1], [1, 2]), ([3], [4, 4]), ([5], [0])]
    for parts in lookups:
        optimizer.zero_grad()
        plain.zero_grad()
        if parts[rank]:
            ours(torch.tensor(parts[rank])).square().sum().backward()
        (alone(torch.tensor(parts[0] + parts[1])).square().sum() / 2).backward()
        optimizer.step()
        plain.step()
    return all_weights(ours), all_weights(alone)


@pytest.mark.parametrize("name", ["SGD", "SparseAdam"])
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(ranks, name, as_dense):
    check_equal(ranks(2).run(_sparse, name, as_dense))


def _two_models() -> list[bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    equal = []
    for _ in range(3):
        torch.manual_seed(hvd.rank())
        model = small_model().to(memory_format=torch.contiguous_format)
        hvd.broadcast_parameters(model.named_parameters(), 0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters()
        )
        for batch in make_batches(3, hvd.size()):
            optimizer.zero_grad()
            model(batch[hvd.rank()]).square().mean().backward()
            optimizer.step()
        gathered = hvd.allgather(torch.tensor([all_weights(model)]))
        equal.append(torch.equal(gathered[0], gathered[1]))
        hvd.shutdown()  # gradients stay valid, and the next model starts afresh
        model(torch.ones(1, 4)).sum().backward()
        hvd.init()
    return equal


def test_models_one_after_the_other_with_new_starts_between(ranks):
    assert ranks(2).run(_two_models) == [[True] * 3] * 2


def _wrong_names() -> dict[str, str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    params = list(model.parameters())
    sgd = torch.optim.SGD(params, lr=0.1)
    cases = {
        "doubles": {"named_parameters": [("w", param) for param in params]},
        "missing": {"named_parameters": list(model.named_parameters())[:2]},
        "no pairs": {"named_parameters": params},
        "passes": {"backward_passes_per_step": 0},
        "predivide": {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        "groups": {"groups": [[params[0]], [params[0]]]},
        "group kind": {"groups": [["w"]]},
        "number of groups": {"groups": -1},
    }
    messages = {}
    for name, arguments in cases.items():
        try:
            hvd.DistributedOptimizer(sgd, **arguments)
            messages[name] = "nothing raised"
        except ValueError as error:
            messages[name] = str(error)
    return messages


def test_wrong_arguments(ranks):
    expected = {
        "doubles": "occur twice: w",
        "missing": "lacks 2",
        "no pairs": "pairs of a name and a parameter",
        "passes": "1 or more",
        "predivide": "op=hvd.Average",
        "groups": "one group only",
        "group kind": "lists of parameters",
        "number of groups": "positive number",
    }
    messages = ranks(2).run(_wrong_names)[0]
    for name, text in expected.items():
        assert text in messages[name], messages[name]


def _state(name: str) -> tuple[list, list]:
    """Only the root has a state, loaded from a checkpoint, and other options."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    options = {"lr": 0.1 * (hvd.rank() + 1), **({"momentum": 0.9} if name == "SGD" else {})}
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    if hvd.rank() == 0:
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    group = optimizer.param_groups[0]
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0] is group
    state = optimizer.state_dict()
    flat = [
        value.flatten().tolist() if isinstance(value, torch.Tensor) else value
        for number in sorted(state["state"])
        for _, value in sorted(state["state"][number].items())
    ]
    return flat, [str(item) for item in sorted(group.items()) if item[0] != "params"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adadelta", "Adamax", "ASGD", "Rprop", "RAdam"])
def test_broadcast_optimizer_state_from_a_checkpoint(ranks, name):
    (state, options), (state_one, options_one) = ranks(2).run(_state, name)
    assert state == state_one and state
    assert options == options_one
    assert "('lr', 0.1)" in options


def _synchronized_without_a_step(zero: str) -> list[float]:
    """A step that never came: the next one reduces its own gradients."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    batch = make_batches(1, hvd.size())[0][hvd.rank()]
    model(batch).square().mean().backward()
    optimizer.synchronize()
    (optimizer if zero == "optimizer" else model).zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    return all_weights(model)


@pytest.mark.parametrize("zero", ["optimizer", "model"])
def test_after_synchronize_without_a_step_the_next_step_reduces(ranks, zero):
    first, second = ranks(2).run(_synchronized_without_a_step, zero)
    assert first == second


def _private_memory() -> float:
    """How much the memory of this rank alone has grown after a step, in gradients."""
    import gc

    import psutil
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    before = psutil.Process().memory_full_info().uss
    model = torch.nn.Linear(4096, 4096, bias=False)  # 64 MiB
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4096)).sum().backward()
        optimizer.step()
    gc.collect()
    hvd.barrier()  # the other rank has its memory too, so that what is shared is so
    grown = psutil.Process().memory_full_info().uss - before
    hvd.barrier()
    return grown / (64 << 20)


def test_a_large_gradient_is_not_kept_beside_the_buffer(ranks):
    ranks(2).run(_private_memory)  # what torch loads at its first step is not to be counted
    for gradients in ranks(2).run(_private_memory):
        # The parameter, and the half of the buffer that the other rank has no need to look at.
        assert gradients < 1.9


def _models_that_differ() -> list[str]:
    """The errors of three steps in a row, as when a cell is run again."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = torch.nn.Linear(3, 1 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before, told = model.weight.clone(), []
    model(torch.ones(2, 3)).sum().backward()
    for _ in range(3):
        with pytest.raises(hvd.HorovodInternalError) as error:
            optimizer.step()
        told.append(str(error.value))
    assert torch.equal(model.weight, before)
    return told


def test_models_that_differ_are_told_at_every_step(ranks):
    zero, one = ranks(2).run(_models_that_differ)
    assert zero == one and all("the ranks' models differ" in told for told in zero)
