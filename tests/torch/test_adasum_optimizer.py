"""DistributedOptimizer(op=Adasum): the ranks' steps are combined, not their gradients."""

import pytest

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.01},
    "RMSprop": {"lr": 0.01},
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


def _pair(a, b):
    product, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    first = a * (1 - product / of_a / 2) if of_a else a
    second = b * (1 - product / of_b / 2) if of_b else b
    return first + second


def _train(name: str, options: dict, wrapping: dict, passes: int = 1) -> tuple[list, list]:
    """Weights after training, and those of one process that plays all ranks."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    if "compression" in wrapping:
        wrapping = {"compression": getattr(hvd.Compression, wrapping["compression"])}
    batches = _batches(3 * passes, hvd.size())
    kind, ours = getattr(torch.optim, name), _model()
    optimizer = hvd.DistributedOptimizer(
        kind(ours.parameters(), **options),
        named_parameters=ours.named_parameters(),
        op=hvd.Adasum,
        backward_passes_per_step=passes,
        **wrapping,
    )
    assert isinstance(optimizer, kind)
    models = [_model() for _ in range(hvd.size())]
    played = [kind(model.parameters(), **options) for model in models]
    for start in range(0, len(batches), passes):
        optimizer.zero_grad()
        before = [param.detach().clone() for param in models[0].parameters()]
        for batch in batches[start : start + passes]:
            ours(batch[hvd.rank()]).square().mean().backward()
            for model, part in zip(models, batch, strict=True):
                model(part).square().mean().backward()
        optimizer.synchronize()  # does nothing
        optimizer.step()
        for each in played:
            each.step()
            each.zero_grad()
        with torch.no_grad():
            for i, old in enumerate(before):
                changes = [list(model.parameters())[i] - old for model in models]
                while len(changes) > 1:
                    changes = [_pair(*changes[j : j + 2]) for j in range(0, len(changes), 2)]
                for model in models:
                    list(model.parameters())[i].copy_(old + changes[0])
    return _weights(ours), _weights(models[0])


def _check(results: list, tolerance: float = 1e-5) -> None:
    for ours, alone in results:
        assert ours == results[0][0]  # bit-equal on all ranks
        assert ours == pytest.approx(alone, abs=tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("np", [1, 2, 4])
def test_as_one_process_that_plays_all_ranks(ranks, name, np):
    _check(ranks(np).run(_train, name, OPTIMIZERS[name], {}))


@pytest.mark.parametrize(
    ("wrapping", "tolerance"), [({"compression": "fp16"}, 3e-3), ({"compression": "bf16"}, 3e-2)]
)
def test_compression(ranks, wrapping, tolerance):
    _check(ranks(2).run(_train, "SGD", OPTIMIZERS["SGD"], wrapping), tolerance)


def test_several_backward_passes(ranks):
    _check(ranks(2).run(_train, "SGD", OPTIMIZERS["SGD"], {}, 3))


def _minimize(kind: str, options: dict, batch) -> tuple[list, list]:
    """Losses and final weights of steps that are given a closure."""
    import torch

    import hvdlite.torch as hvd

    model = _model()
    optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(5)], _weights(model)


def _odd_uses() -> dict:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    told = {}

    def catch(name, call):
        try:
            call()
            told[name] = "no error"
        except (AssertionError, ValueError) as error:
            told[name] = f"{type(error).__name__}: {error}"

    model = _model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    batch = _batches(1, hvd.size())[0][hvd.rank()]
    catch("skip", optimizer.skip_synchronize)
    model(batch).square().mean().backward()
    catch("zero_grad", optimizer.zero_grad)
    catch("twice", lambda: model(batch).square().mean().backward())
    optimizer.step()
    optimizer.zero_grad()

    for kind, options in (("SGD", {"lr": 0.1}), ("LBFGS", {"max_iter": 3})):
        told[kind] = _minimize(kind, options, batch)
    return told


def test_misuse_and_closures(ranks):
    answers = ranks(2).run(_odd_uses)
    for told in answers:
        assert told["skip"].startswith("AssertionError: skip_synchronize()")
        assert told["zero_grad"].startswith("AssertionError")
        assert "backward_passes_per_step" in told["twice"]
        for kind in ("SGD", "LBFGS"):
            losses, weights = told[kind]
            assert losses[-1] < losses[0]
            assert weights == answers[0][kind][1]


def _only_one_has_gradients() -> tuple[list, list]:
    """Two parameters, of which each rank uses its own; and an embedding with sparse gradients."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*params, table.weight], lr=0.5), op=hvd.Adasum
    )
    (params[rank].sum() + table(torch.tensor([rank])).sum()).backward()
    optimizer.step()
    return [param.tolist() for param in params], table.weight.tolist()


def test_gradients_that_only_some_ranks_have(ranks):
    expected = [[0.5] * 3, [0.5] * 3], [[-0.5] * 2, [-0.5] * 2, [0.0] * 2, [0.0] * 2]
    assert ranks(2).run(_only_one_has_gradients) == [expected] * 2


def _wrong_number() -> tuple[str, list]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pair = hvd.ProcessSet([0, 1])
    hvd.add_process_set(pair)
    # Two of three ranks can do it, and the third goes on alone.
    wrapped = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, process_set=pair)
    model(_batches(1, 3)[0][hvd.rank()]).square().mean().backward()
    wrapped.step()
    hvd.remove_process_set(pair)
    try:
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    except NotImplementedError as error:
        return str(error), _weights(model)
    return "no error", []


def test_a_number_of_ranks_that_is_no_power_of_two(ranks):
    (told, first), (_, second), (_, third) = ranks(3).run(_wrong_number)
    assert "power of two" in told
    assert first == second != third
