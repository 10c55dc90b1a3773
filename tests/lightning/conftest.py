"""Ranks for tests of the strategy for Lightning."""

import pytest
from lightning_training import LIGHTNING
from mpi import pools


@pytest.fixture(scope="session")
def ranks():
    """As for every test, of processes that have PyTorch and Lightning already."""
    yield from pools(LIGHTNING)
