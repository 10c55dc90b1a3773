"""Gradients that the program changes before they are reduced."""

import pytest
from training import small_model


def _changes(how: str) -> list[str]:
    """What is warned of while gradients are changed, or not, before they are reduced."""
    import warnings

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = small_model()
    kind = torch.optim.SGD(model.parameters(), lr=0.1, foreach=how == "foreach")
    passes = 2 if how == "accumulated" else 1
    optimizer = hvd.DistributedOptimizer(
        kind, model.named_parameters(), backward_passes_per_step=passes
    )
    norm = torch.nn.utils.clip_grad_norm_
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            optimizer.zero_grad(set_to_none=how != "kept")
            for _ in range(passes):
                model(torch.ones(2, 4) * (1 + hvd.rank())).square().sum().backward()
            if how == "norm":
                norm(model.parameters(), 0.1)
            elif how == "value":
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            elif how == "replaced":
                model[0].weight.grad = model[0].weight.grad * 0.5
            elif how == "one":
                model[2].bias.grad.add_(1.0)
            elif how == "measured":
                torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
            elif how == "dropped":
                model[0].weight.grad = None
            if how == "right":
                optimizer.synchronize()
                norm(model.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("how", ["norm", "value", "replaced", "one"])
def test_gradients_changed_before_they_are_reduced_are_told_once(ranks, how):
    for told in ranks(2).run(_changes, how):
        (message,) = told
        assert "was written to between backward() and step()" in message
        assert "with optimizer.skip_synchronize(): optimizer.step()" in message


@pytest.mark.parametrize(
    "how", ["plain", "kept", "foreach", "accumulated", "measured", "dropped", "right"]
)
def test_usual_programs_are_not_warned(ranks, how):
    assert ranks(2).run(_changes, how) == [[], []]
