"""Ranks for tests of the binding to PyTorch."""

import pytest
from mpi import TORCH, pools


@pytest.fixture(scope="session")
def ranks():
    """As for every test, of processes that have PyTorch already."""
    yield from pools(TORCH)
