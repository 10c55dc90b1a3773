"""Ranks for tests of Keras: each such test runs on Keras 3 and on tf_keras."""

import pytest
from mpi import KERAS, KERAS_ON_TORCH, Ranks

KINDS = {"Keras 3": {}, "tf_keras": {"TF_USE_LEGACY_KERAS": "1"}}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="session", params=list(KINDS))
def keras_ranks(request):
    """Two ranks whose tf.keras is Keras 3, and then two whose tf.keras is tf_keras."""
    pool = Ranks(2, {**QUIET, **KINDS[request.param]}, KERAS)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def torch_ranks():
    """Two ranks whose Keras computes with PyTorch."""
    pool = Ranks(2, {"KERAS_BACKEND": "torch"}, KERAS_ON_TORCH)
    yield pool
    pool.stop()
