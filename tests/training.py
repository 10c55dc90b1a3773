"""A small model and its data, for tests that compare ranks with one process."""

import pytest


def small_model():
    """The same on every rank."""
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def make_batches(steps: int, size: int):
    """[size, 3, 4] of random numbers for each step, a part for each rank."""
    import torch

    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, 3, 4, generator=generator) for _ in range(steps)]


def all_weights(model) -> list[float]:
    """All parameters as one list."""
    return [value for param in model.parameters() for value in param.detach().flatten().tolist()]


def check_equal(results: list, tolerance: float = 1e-5) -> None:
    """(ours, alone) of each rank: ours bit-equal on all, and close to one process."""
    first = results[0][0]
    for ours, alone in results:
        assert ours == first  # bit-equal on all ranks
        assert ours == pytest.approx(alone, abs=tolerance)
