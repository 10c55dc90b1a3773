"""Manual optimization: several optimizers, stepped by the program itself."""

import pytest
from lightning_training import PACKAGES, fit, plain_module
from training import all_weights, check_equal

KINDS = [
    "plain", "toggled", "clipped", "accumulated", "held", "closure", "backward", "toggled backward",
]  # fmt: skip


def _rivals(kind: str):
    """Two halves as in a GAN, whose losses go through both; each has an optimizer of its own."""
    import torch

    module = plain_module(PACKAGES[0])
    module.automatic_optimization = False
    module.first, module.second = module.net[0], module.net[2]

    def configure_optimizers():
        halves = module.first, module.second
        return [torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9) for half in halves]

    def training_step(batch, batch_idx):
        for i, optimizer in enumerate(module.optimizers()):
            if "toggled" in kind:
                module.toggle_optimizer(optimizer)
            if kind != "accumulated" or batch_idx % 2 == 0:
                optimizer.zero_grad()
            if kind == "held":
                with optimizer.toggle_model(sync_grad=False):
                    for _ in range(2):
                        module.manual_backward(module.error(batch))
            loss = module.error(batch) * (i + 1)
            if kind == "closure":
                optimizer.step(lambda loss=loss: module.manual_backward(loss))
                continue
            if "backward" in kind:
                loss.backward()
            else:
                module.manual_backward(loss)
            if kind == "clipped":
                module.clip_gradients(optimizer, 0.1, "norm")
            if kind != "accumulated" or batch_idx % 2 == 1:
                optimizer.step()
            if "toggled" in kind:
                module.untoggle_optimizer(optimizer)

    module.configure_optimizers, module.training_step = configure_optimizers, training_step
    return module


def _both(kind: str) -> tuple[list, list]:
    import hvdlite.torch as hvd

    hvd.init()
    ours, alone = _rivals(kind), _rivals(kind)
    fit(PACKAGES[0], "horovod", ours, 2, count=24)
    fit(PACKAGES[0], "auto", alone, 4, count=24)
    return all_weights(ours), all_weights(alone)


@pytest.mark.parametrize("kind", KINDS)
def test_two_optimizers(ranks, kind):
    check_equal(ranks(2).run(_both, kind))


def _shared() -> tuple[list, list]:
    """Two optimizers with a parameter in common, whose gradient is reduced once."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    results = []
    for strategy, batch in (("horovod", 2), ("auto", 4)):
        module = _rivals("plain")
        common = list(module.first.parameters())
        module.configure_optimizers = lambda module=module, common=common: [
            torch.optim.SGD([*common, *module.second.parameters()], lr=0.1),
            torch.optim.SGD(common, lr=0.1),
        ]
        fit(PACKAGES[0], strategy, module, batch)
        results.append(all_weights(module))
    return tuple(results)


def test_a_parameter_of_two_optimizers(ranks):
    check_equal(ranks(2).run(_shared))
