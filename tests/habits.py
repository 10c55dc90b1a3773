"""What the tests of habits share."""

import pytest


def tiny_model(seed: int = 3):
    """Two linear layers, the same on every rank for the same seed."""
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def tiny_batches(steps: int, size: int):
    """For each step, the ranks' batches one behind the other."""
    import torch

    return torch.randn(steps, size, 3, 4, generator=torch.Generator().manual_seed(7))


def tiny_weights(model) -> list[float]:
    """All parameters as one list."""
    return [value for param in model.parameters() for value in param.detach().flatten().tolist()]


def learn(model, optimizer, batch) -> float:
    """One step on a batch; returns its loss."""
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def check_ranks(results: list, tolerance: float = 1e-5) -> None:
    """Equal on all ranks, and close to one process."""
    for ours, alone in results:
        assert ours == results[0][0]  # bit-equal on all ranks
        assert ours == pytest.approx(alone, abs=tolerance)


# Optimizers


def options_of(optimizer) -> list[tuple]:
    """Each option with its type, and those of what it holds."""
    group = optimizer.param_groups[0]
    shown = sorted((key, value) for key, value in group.items() if key != "params")
    return [(k, v, type(v), [type(x) for x in v] if isinstance(v, tuple) else []) for k, v in shown]
