"""A Trainer on two ranks trains as one process with the same total batch does."""

import pytest
from lightning_training import PACKAGES, fit, plain_module
from training import all_weights, check_equal

OPTIONS = {
    "plain": {},
    "clipped by norm": {"gradient_clip_val": 0.1},
    "clipped by value": {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
    "accumulated": {"accumulate_grad_batches": 2},  # of five batches: the last stands alone
    "accumulated and clipped": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1},
    "64-true": {"precision": "64-true"},
    "bf16-mixed": {"precision": "bf16-mixed"},
}


def _alike(package: str, options: dict) -> tuple:
    """Losses and weights with the strategy "horovod", and of one process."""
    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = plain_module(package), plain_module(package)
    fit(package, "horovod", ours, 4 // hvd.size(), **options)
    fit(package, "auto", alone, 4, **options)
    return ours.losses, alone.losses, (all_weights(ours), all_weights(alone))


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", OPTIONS)
def test_as_one_process(ranks, name, package):
    results = ranks(2).run(_alike, package, OPTIONS[name])
    tolerance = 1e-2 if "bf16" in name else 1e-6
    check_equal([weights for _, _, weights in results], tolerance)
    losses = [sum(both) / 2 for both in zip(*(ours for ours, _, _ in results), strict=True)]
    assert losses == pytest.approx(results[0][1], rel=tolerance)
    assert len(losses) == 10


def _reductions(groups: int) -> int:
    """How often gradients are reduced in five backward passes."""
    import hvdlite.torch as hvd
    from hvdlite.engine.engine import Engine

    hvd.init()
    counted, submit = [], Engine.submit

    def count(self, requests, *args):
        counted.extend(each for each in requests if each.descriptor.packed)  # of gradients
        return submit(self, requests, *args)

    Engine.submit = count
    try:
        module = plain_module(PACKAGES[0])
        fit(PACKAGES[0], "horovod", module, 2, accumulate_grad_batches=groups, max_epochs=1)
    finally:
        Engine.submit = submit
    return len(counted)


@pytest.mark.parametrize("groups, reductions", [(1, 5), (2, 3), (5, 1)])
def test_accumulated_gradients_are_reduced_once(ranks, groups, reductions):
    assert ranks(2).run(_reductions, groups) == [reductions] * 2


def _scaled(overflows: list[int]) -> tuple:
    """With a GradScaler; in step 2 the loss is infinite on the ranks in `overflows`."""
    import torch
    from lightning.pytorch.plugins import MixedPrecision

    import hvdlite.torch as hvd

    hvd.init()
    results = []
    for strategy, batch in (("horovod", 2), ("auto", 4)):
        module = plain_module(PACKAGES[0])
        on = [hvd.rank()] if strategy == "horovod" else [0, 1]
        error, factor = module.error, float("inf") if set(on) & set(overflows) else 1.0
        module.error = lambda batch, error=error, module=module, factor=factor: (
            error(batch) * (factor if len(module.losses) == 2 else 1.0)
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)
        fit(PACKAGES[0], strategy, module, batch, plugins=plugin, gradient_clip_val=0.1)
        results.append((all_weights(module), scaler.get_scale()))
    (ours, scale), (alone, other) = results
    return (ours, alone), scale, other


@pytest.mark.parametrize("overflows", [[], [1], [0, 1]], ids=["none", "one", "all"])
def test_ranks_leave_out_a_step_together(ranks, overflows):
    results = ranks(2).run(_scaled, overflows)
    check_equal([weights for weights, _, _ in results])
    for _, scale, alone in results:
        assert scale == alone == (512.0 if overflows else 1024.0)


def _lbfgs() -> tuple[list, list]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()

    def make(parameters):
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=3, line_search_fn="strong_wolfe")

    ours, alone = (plain_module(PACKAGES[0], make) for _ in range(2))
    fit(PACKAGES[0], "horovod", ours, 10, max_epochs=3)
    fit(PACKAGES[0], "auto", alone, 20, max_epochs=3)
    return all_weights(ours), all_weights(alone)


def test_lbfgs(ranks):
    check_equal(ranks(2).run(_lbfgs), 1e-4)


def _half_the_bytes() -> tuple[list, list]:
    from lightning.pytorch.strategies import HorovodStrategy

    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = plain_module(PACKAGES[0]), plain_module(PACKAGES[0])
    fit(PACKAGES[0], HorovodStrategy(compression=hvd.Compression.fp16), ours, 2)
    fit(PACKAGES[0], "auto", alone, 4)
    return all_weights(ours), all_weights(alone)


def test_the_class_itself_compresses(ranks):
    results = ranks(2).run(_half_the_bytes)
    check_equal(results, 1e-2)
    assert results[0][0] != pytest.approx(results[0][1], abs=1e-7)


def _batch_norm() -> tuple:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    models = []
    for strategy, batch in (("horovod", 2), ("auto", 4)):
        module = plain_module(PACKAGES[0])
        module.net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), module.net)
        norm = module.net[0]
        fit(PACKAGES[0], strategy, module, batch, sync_batchnorm=strategy == "horovod")
        assert type(norm) is torch.nn.BatchNorm1d and module.net[0] is norm
        models.append([*all_weights(module), *norm.running_mean.tolist()])
    return tuple(models)


def test_sync_batchnorm(ranks):
    check_equal(ranks(2).run(_batch_norm))


def _wrapped_twice() -> str:
    import torch

    import hvdlite.torch as hvd

    hvd.init()

    def make(parameters):
        return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))

    try:
        fit(PACKAGES[0], "horovod", plain_module(PACKAGES[0], make), 2)
    except ValueError as error:
        return str(error)
    return ""


def test_a_wrapped_optimizer_is_told(ranks):
    for message in ranks(2).run(_wrapped_twice):
        assert "return the plain optimizer" in message
