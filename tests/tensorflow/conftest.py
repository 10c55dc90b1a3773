"""Ranks for tests of the binding to TensorFlow."""

import pytest
from mpi import KERAS, pools


@pytest.fixture(scope="session")
def ranks():
    """As for every test, of processes that have TensorFlow already."""
    yield from pools(KERAS)
