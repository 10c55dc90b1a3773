"""What programs written for Horovod do with an optimizer's state and options."""

import pytest
from habits import check_ranks, learn, options_of, tiny_batches, tiny_model, tiny_weights


def _every_optimizer(wrap_first: bool) -> tuple[list[str], list[str]]:
    """The root's state and options go to all, then they train as one process; names, faults."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    names = [
        name
        for name, kind in sorted(vars(torch.optim).items())
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if name not in ("Optimizer", "SparseAdam", "LBFGS", "Muon")  # Muon: matrices only
    ]
    batches, wrong = tiny_batches(3, hvd.size()).double(), []
    cases = [(name, {}, steps) for name in names for steps in (0, 2)]
    cases.append(("Adam", {"lr": torch.tensor(0.01), "betas": (0.8, 0.9), "amsgrad": True}, 2))
    cases.append(("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": False}, 1))
    for name, options, steps in cases:
        kind = getattr(torch.optim, name)
        alone = tiny_model().double()
        plain = kind(alone.parameters(), **options)
        ours = tiny_model(hvd.rank()).double()
        other = {} if hvd.rank() == 0 else {"lr": 7.0}
        optimizer = kind(ours.parameters(), **{**options, **other})
        if hvd.rank() == 0:
            ours.load_state_dict(alone.state_dict())
        for _ in range(steps):  # the state that the root has loaded, say
            learn(alone, plain, batches[0, 0])
            if hvd.rank() == 0:
                learn(ours, optimizer, batches[0, 0])
        if wrap_first:
            optimizer = hvd.DistributedOptimizer(optimizer, ours.named_parameters())
        hvd.broadcast_parameters(ours.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        if not wrap_first:
            optimizer = hvd.DistributedOptimizer(optimizer, ours.named_parameters())
        if options_of(optimizer) != options_of(plain):
            wrong.append(f"{name} {steps}: {options_of(optimizer)} is not {options_of(plain)}")
        for batch in batches:
            learn(ours, optimizer, batch[hvd.rank()])
            learn(alone, plain, batch.flatten(0, 1))
        if tiny_weights(ours) != pytest.approx(tiny_weights(alone), abs=1e-9):
            wrong.append(f"{name} after {steps} steps")
    return names, wrong


@pytest.mark.parametrize("wrap_first", [False, True])
def test_every_optimizer_starts_from_the_roots_state_and_trains_as_one_process(ranks, wrap_first):
    for names, wrong in ranks(2).run(_every_optimizer, wrap_first):
        assert wrong == []
        assert len(names) >= 12 and {"Adafactor", "Adam", "ASGD", "Rprop", "SGD"} <= set(names)


def _state_of_the_others_is_replaced() -> list:
    """Every rank has a state of its own; schedulers hold the groups (made before wrapping)."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = tiny_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + hvd.rank())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(hvd.rank() + 1):
        learn(model, optimizer, torch.ones(1, 4) * hvd.rank())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 1)
    scheduler.step()
    state = optimizer.state[next(model.parameters())]
    return [optimizer.param_groups[0]["lr"], state["step"].item(), state["exp_avg"].tolist()]


def test_a_root_other_than_zero_and_a_scheduler_made_before(ranks):
    one, two = ranks(2).run(_state_of_the_others_is_replaced)
    assert one == two and one[:2] == [0.55, 2]


def _lbfgs() -> str:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    try:
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(tiny_model().parameters()), 0)
    except ValueError as error:
        return str(error)


def test_the_state_of_lbfgs_is_refused(ranks):
    assert all("LBFGS" in told for told in ranks(2).run(_lbfgs))


# Ways of training


def _accumulate(wrapping: dict, passes: int, sparse: bool) -> tuple[list, list]:
    """Weights with backward_passes_per_step and one option more, and of one process."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    wrapping, factor = dict(wrapping), 1
    if "compression" in wrapping:
        wrapping["compression"] = getattr(hvd.Compression, wrapping["compression"])
    if "op" in wrapping:
        wrapping["op"], factor = hvd.Sum, size
    if "process_set" in wrapping:
        wrapping["process_set"] = hvd.global_process_set
    kind = torch.nn.Embedding if sparse else torch.nn.Linear

    def build():
        torch.manual_seed(5)
        return kind(6, 2, **({"sparse": True} if sparse else {})).double()

    ours, alone = build(), build()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    if wrapping.pop("later", False):
        optimizer = hvd.DistributedOptimizer(optimizer, **wrapping)
        optimizer.set_backward_passes_per_step(passes)
    else:
        optimizer = hvd.DistributedOptimizer(
            optimizer, ours.named_parameters(), backward_passes_per_step=passes, **wrapping
        )
    assert optimizer.backward_passes_per_step == passes
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        for _ in range(passes):
            if sparse:
                batch = torch.randint(0, 6, (size, 3), generator=generator)
            else:
                batch = torch.randn(size, 3, 6, generator=generator).double()
            ours(batch[rank]).square().mean().backward()
            (alone(batch.flatten(0, 1)).square().mean() * factor).backward()
        optimizer.step()
        plain.step()
    return tiny_weights(ours), tiny_weights(alone)


@pytest.mark.parametrize("passes", [2, 3])
@pytest.mark.parametrize(
    ("wrapping", "tolerance"),
    [
        ({"compression": "fp16"}, 3e-3),
        ({"compression": "bf16"}, 3e-2),
        ({"gradient_predivide_factor": 2.0}, 1e-9),
        ({"num_groups": 1}, 1e-9),
        ({"op": "Sum"}, 1e-9),
        ({"process_set": "global"}, 1e-9),
        ({"later": True}, 1e-9),
    ],
    ids=str,
)
def test_several_backward_passes_and_an_option(ranks, wrapping, tolerance, passes):
    check_ranks(ranks(2).run(_accumulate, wrapping, passes, False), tolerance)


@pytest.mark.parametrize(
    "wrapping",
    [{}, {"sparse_as_dense": True}, {"op": "Sum"}, {"op": "Sum", "sparse_as_dense": True}],
    ids=str,
)
def test_several_backward_passes_with_sparse_gradients(ranks, wrapping):
    check_ranks(ranks(2).run(_accumulate, wrapping, 2, True), 1e-9)


def _own_compressor(as_instance: bool) -> tuple[list, int]:
    """Weights after a step, and how often a compressor was asked."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    calls = []

    class Counting(hvd.Compression.none):
        @staticmethod
        def compress(tensor):
            calls.append(tensor.dtype)
            return tensor / 4, tensor.dtype

        @staticmethod
        def decompress(tensor, dtype):
            return tensor * 4

    model = torch.nn.Linear(2, 1)
    model.weight.data.zero_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        compression=Counting() if as_instance else Counting,
    )
    model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    optimizer.step()
    return model.weight.tolist(), len(calls)


@pytest.mark.parametrize("as_instance", [False, True])
def test_a_compressor_of_ones_own_is_really_called(ranks, as_instance):
    assert ranks(2).run(_own_compressor, as_instance) == [([[-0.5, -0.5]], 2)] * 2
