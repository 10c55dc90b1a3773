"""DistributedOptimizer: the ranks train as one process would on the joined batch."""

import pytest

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1},
    "RMSprop": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
}


def _model():
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def _batches(steps: int, size: int):
    import torch

    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, 3, 4, generator=generator) for _ in range(steps)]


def _weights(model) -> list[float]:
    return [value for param in model.parameters() for value in param.detach().flatten().tolist()]


def _train(name: str, options: dict, wrapping: dict, steps: int = 4) -> tuple[list, list]:
    """Weights after training on this rank's share, and of one process on the joined batch."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    if "compression" in wrapping:
        wrapping = {"compression": getattr(hvd.Compression, wrapping["compression"])}
    batches = _batches(steps, hvd.size())
    ours, alone = _model(), _model()
    if hvd.rank() > 0:
        for param in ours.parameters():
            param.data.zero_()
    kind = getattr(torch.optim, name)
    optimizer = kind(ours.parameters(), **options)
    hvd.broadcast_parameters(ours.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=ours.named_parameters(), **wrapping
    )
    assert isinstance(optimizer, kind)
    plain = kind(alone.parameters(), **options)
    for batch in batches:
        optimizer.zero_grad()
        ours(batch[hvd.rank()]).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        alone(batch.flatten(0, 1)).square().mean().backward()
        plain.step()
    return _weights(ours), _weights(alone)


def _check(results: list, tolerance: float = 1e-5) -> None:
    first = results[0][0]
    for ours, alone in results:
        assert ours == first  # bit-equal on all ranks
        assert ours == pytest.approx(alone, abs=tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("np", [2, 3])
def test_as_one_process_on_the_joined_batch(ranks, name, np):
    _check(ranks(np).run(_train, name, OPTIMIZERS[name], {}))


@pytest.mark.parametrize(
    ("wrapping", "tolerance"),
    [
        ({"gradient_predivide_factor": 2.0}, 1e-5),
        ({"num_groups": 2}, 1e-5),
        ({"groups": 2}, 1e-5),
        ({"compression": "fp16"}, 3e-3),
        ({"compression": "bf16"}, 3e-2),
    ],
)
def test_options(ranks, wrapping, tolerance):
    _check(ranks(2).run(_train, "SGD", OPTIMIZERS["SGD"], wrapping), tolerance)


def _own_compressor() -> tuple[list, list]:
    import torch

    import hvdlite.torch as hvd

    class Half(hvd.Compression.none):
        @staticmethod
        def compress(tensor):
            return tensor.double() / 2, tensor.dtype

        @staticmethod
        def decompress(tensor, dtype):
            return (tensor * 2).to(dtype)

    hvd.Compression.own = Half
    assert not issubclass(Half, hvd.Compression.fp16)
    try:
        return _train("SGD", {"lr": 0.1}, {"compression": "own"})
    finally:
        del hvd.Compression.own
        del torch


def test_a_compressor_of_ones_own(ranks):
    _check(ranks(2).run(_own_compressor))


def _accumulate(passes: int) -> tuple[list, list, list]:
    import warnings

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = _model(), _model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1), backward_passes_per_step=passes
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    batches = _batches(2 * passes, hvd.size())
    for start in (0, passes):
        optimizer.zero_grad()
        plain.zero_grad()
        for batch in batches[start : start + passes]:
            ours(batch[hvd.rank()]).square().mean().backward()
            alone(batch.flatten(0, 1)).square().mean().backward()
        optimizer.step()
        plain.step()
    # Too many backward passes, and too few, are told.
    optimizer.zero_grad()
    told = []
    for batch in batches[:passes]:
        ours(batch[0]).sum().backward()
    try:
        ours(batches[0][0]).sum().backward()
    except AssertionError as error:
        told.append(str(error))
    optimizer.step()
    optimizer.zero_grad()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours(batches[0][0]).sum().backward()
        optimizer.step()
    told += [str(warning.message) for warning in caught]
    return _weights(ours), _weights(alone), told


def test_backward_passes_per_step(ranks):
    results = ranks(2).run(_accumulate_checked, 3)
    for told in results:
        assert "backward_passes_per_step=3" in told[0] and "Raise" in told[0]
        assert "after 1 of 3 backward passes" in told[1]


def _accumulate_checked(passes: int) -> list[str]:
    import torch

    import hvdlite.torch as hvd

    ours, _, told = _accumulate(passes)
    gathered = hvd.allgather(torch.tensor([ours]))
    assert torch.equal(gathered[0], gathered[1])
    return told


def _accumulated_weights(passes: int) -> tuple[list, list]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = _model(), _model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1), backward_passes_per_step=passes
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for start in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        for batch in _batches(passes, hvd.size()):
            ours(batch[hvd.rank()] + start).square().mean().backward()
            alone(batch.flatten(0, 1) + start).square().mean().backward()
        optimizer.step()
        plain.step()
    return _weights(ours), _weights(alone)


def test_accumulated_gradients_are_those_of_one_process(ranks):
    _check(ranks(2).run(_accumulated_weights, 4))


def _branches() -> tuple[list, list]:
    """Two heads; rank 0 trains one and rank 1 the other; a third is never used (C05)."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()

    def build():
        torch.manual_seed(1)
        return torch.nn.ModuleDict({k: torch.nn.Linear(3, 1) for k in ("a", "b", "unused")})

    ours, alone = build(), build()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.1, weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, ours.named_parameters())
    plain = torch.optim.Adam(alone.parameters(), lr=0.1, weight_decay=0.1)
    x = torch.ones(2, 3)
    for step in range(5):
        heads = ("a", "b") if step < 2 else ("b", "a")
        skip = step == 0 or step == 3
        optimizer.zero_grad()
        plain.zero_grad()
        if not (skip and rank == 1):
            ours[heads[rank]](x).mean().backward()
        optimizer.step()
        loss = alone[heads[0]](x).mean() / 2
        if not skip:
            loss = loss + alone[heads[1]](x).mean() / 2
        loss.backward()
        plain.step()
    return _weights(ours), _weights(alone)


def test_a_missing_gradient_counts_as_zero_and_one_missing_everywhere_stays_missing(ranks):
    _check(ranks(2).run(_branches))


def _frozen() -> tuple[list, list]:
    """Frozen layers, an integer parameter, freezing and unfreezing on the way (C06)."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()

    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
        model[0].requires_grad_(False)
        model.counter = torch.nn.Parameter(torch.tensor([5, 6]), requires_grad=False)
        return model

    ours, alone = build(), build()
    if rank == 1:
        ours.counter.data.add_(1)
    frozen = ours[0].weight.clone()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(ours.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer = hvd.DistributedOptimizer(optimizer, ours.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    batches = torch.randn(12, 2, 4, 3, generator=torch.Generator().manual_seed(5))
    for step, batch in enumerate(batches):
        if step == 3:
            for model in (ours, alone):
                model[2].requires_grad_(False)
        if step == 6:
            for model in (ours, alone):
                model[2].requires_grad_(True)
                model[0].requires_grad_(True)  # for the first time
        if step < 6:
            assert torch.equal(ours[0].weight, frozen)
        optimizer.zero_grad()
        plain.zero_grad()
        ours(batch[rank]).square().mean().backward()
        alone(batch.flatten(0, 1)).square().mean().backward()
        optimizer.step()
        plain.step()
    assert ours.counter.dtype == torch.int64 and ours.counter.tolist() == [5, 6]
    return _weights(ours), _weights(alone)


def test_freezing_and_unfreezing(ranks):
    _check(ranks(2).run(_frozen))


def _clip() -> tuple[list, list, int, list]:
    """Clipping between synchronize() and step(), with and without the context (C02)."""
    import warnings

    import torch

    import hvdlite.torch as hvd
    from hvdlite import basics

    hvd.init()
    engine = basics.engine()
    calls = []
    run = engine.channels[0].collectives.allreduce_rows
    engine.channels[0].collectives.allreduce_rows = lambda *args: (calls.append(1), run(*args))
    ours, alone = _model(), _model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.5))
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    told = []
    for step, batch in enumerate(_batches(4, hvd.size())):
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
    engine.channels[0].collectives.allreduce_rows = run
    return _weights(ours), _weights(alone), len(calls), told


def test_clipping_sees_the_mean_gradient_which_travels_once(ranks):
    results = ranks(2).run(_clip)
    _check([(ours, alone) for ours, alone, _, _ in results])
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
    ours, alone = _model().double(), _model().double()
    kind = getattr(torch.optim, name)
    optimizer = hvd.DistributedOptimizer(kind(ours.parameters(), **options))
    plain = kind(alone.parameters(), **options)
    returned = []
    for batch in _batches(3, hvd.size()):
        batch = batch.double()

        def closure(model=ours, opt=optimizer, data=batch[rank]):
            opt.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        returned.append(optimizer.step(closure) is not None)
        plain.step(lambda b=batch: closure(alone, plain, b.flatten(0, 1)))
    return _weights(ours), _weights(alone), all(returned)


@pytest.mark.parametrize("name", ["SGD", "LBFGS"])
def test_closures(ranks, name):
    results = ranks(2).run(_closures, name)
    _check([(ours, alone) for ours, alone, _ in results])
    assert all(returned for _, _, returned in results)


def _schedulers() -> list:
    """Schedulers made before and after wrapping; saving and plain loading (C11)."""
    import io
    import pickle
    import warnings

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = _model()
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
    gathered = hvd.allgather(torch.tensor([_weights(model)]))
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
    """An embedding with sparse gradients; on one step rank 1 looks up nothing (C09)."""
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
    return _weights(ours), _weights(alone)


@pytest.mark.parametrize("name", ["SGD", "SparseAdam"])
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(ranks, name, as_dense):
    _check(ranks(2).run(_sparse, name, as_dense))


def _two_models() -> list[bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    equal = []
    for _ in range(3):
        torch.manual_seed(hvd.rank())
        model = _model().to(memory_format=torch.contiguous_format)
        hvd.broadcast_parameters(model.named_parameters(), 0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters()
        )
        for batch in _batches(3, hvd.size()):
            optimizer.zero_grad()
            model(batch[hvd.rank()]).square().mean().backward()
            optimizer.step()
        gathered = hvd.allgather(torch.tensor([_weights(model)]))
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
    model = _model()
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
        "group kind": "torch.Tensor",
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
    model = _model()
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
