"""DistributedOptimizer: the ranks train as one process would on the joined batch."""

import pytest
from training import all_weights, check_equal, make_batches, small_model

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1},
    "RMSprop": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
}


def _train(name: str, options: dict, wrapping: dict, steps: int = 4) -> tuple[list, list]:
    """Weights after training on this rank's share, and of one process on the joined batch."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    if "compression" in wrapping:
        wrapping = {"compression": getattr(hvd.Compression, wrapping["compression"])}
    batches = make_batches(steps, hvd.size())
    ours, alone = small_model(), small_model()
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
    return all_weights(ours), all_weights(alone)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("np", [2, 3])
def test_as_one_process_on_the_joined_batch(ranks, name, np):
    check_equal(ranks(np).run(_train, name, OPTIMIZERS[name], {}))


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
    check_equal(ranks(2).run(_train, "SGD", OPTIMIZERS["SGD"], wrapping), tolerance)


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
    check_equal(ranks(2).run(_own_compressor))


def _accumulate(passes: int) -> tuple[list, list, list]:
    import warnings

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1), backward_passes_per_step=passes
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    batches = make_batches(2 * passes, hvd.size())
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
    return all_weights(ours), all_weights(alone), told


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
    ours, alone = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1), backward_passes_per_step=passes
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for start in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        for batch in make_batches(passes, hvd.size()):
            ours(batch[hvd.rank()] + start).square().mean().backward()
            alone(batch.flatten(0, 1) + start).square().mean().backward()
        optimizer.step()
        plain.step()
    return all_weights(ours), all_weights(alone)


def test_accumulated_gradients_are_those_of_one_process(ranks):
    check_equal(ranks(2).run(_accumulated_weights, 4))


def _branches() -> tuple[list, list]:
    """Two heads; rank 0 trains one and rank 1 the other; a third is never used."""
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
    return all_weights(ours), all_weights(alone)


def test_a_missing_gradient_counts_as_zero_and_one_missing_everywhere_stays_missing(ranks):
    check_equal(ranks(2).run(_branches))


def _frozen() -> tuple[list, list]:
    """Frozen layers, an integer parameter, freezing and unfreezing on the way."""
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
    return all_weights(ours), all_weights(alone)


def test_freezing_and_unfreezing(ranks):
    check_equal(ranks(2).run(_frozen))


def _accumulating_saves_collectives() -> int:
    import torch

    import hvdlite.torch as hvd
    from hvdlite import testing

    hvd.init()
    model = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=40
    )
    with testing.counted("allreduce_rows") as calls:
        for _ in range(2):
            for _ in range(40):
                model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return len(calls)


def test_forty_backward_passes_need_one_reduction(ranks):
    assert ranks(2).run(_accumulating_saves_collectives) == [2, 2]


def _with_a_timeline(path: str) -> None:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = torch.nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    hvd.start_timeline(path)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    hvd.stop_timeline()


def test_the_timeline_tells_of_each_gradient(ranks, tmp_path):
    import json

    path = tmp_path / "timeline.json"
    ranks(2).run(_with_a_timeline, str(path))
    events = json.loads(path.read_text())
    pids = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    for name in ("allreduce.weight", "allreduce.bias"):
        began = [e["name"] for e in events if e["pid"] == pids[name] and e["ph"] == "B"]
        assert began[:3] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "SHM_ALLREDUCE"]
