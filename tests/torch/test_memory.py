"""Where gradients lie when a machine has little shared memory, or none."""

import os
import subprocess
import sys

import pytest
from mpi import TORCH, environment, paths, pools


@pytest.fixture(scope="module")
def fresh():
    """Ranks of this file's own: what others have left in use would count against the limit."""
    yield from pools(TORCH)


def _train() -> tuple[str, float, float]:
    """Two steps of 16 MB of gradients, and a larger allreduce: how they went, and results."""
    import torch

    import hvdlite.torch as hvd
    from hvdlite import testing

    hvd.init()
    model = torch.nn.Linear(2000, 2000)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 2000), float(hvd.rank()))).sum().backward()
        optimizer.step()
    large = hvd.allreduce(torch.ones(10_000_000), op=hvd.Sum)
    return testing.collectives().name, model.weight.grad[0, 0].item(), large[-1].item()


def _train_with(megabytes: str) -> tuple[tuple[str, float, float], str]:
    """`_train` with so much shared memory, and what this rank said on stderr."""
    import contextlib
    import io
    import os

    from hvdlite import basics, testing

    with contextlib.redirect_stderr(io.StringIO()) as said:
        testing.new_world(HVDLITE_SHARED_MEMORY_MB=megabytes)
        result = _train()
    del os.environ["HVDLITE_SHARED_MEMORY_MB"]
    basics.shutdown()
    return result, said.getvalue()


def test_without_shared_memory_the_ranks_exchange_messages_and_say_so_once(fresh):
    results, said = zip(*fresh(2).run(_train_with, "0"), strict=True)
    assert results == (("mpi", 0.5, 2),) * 2
    assert "".join(said).count("shared memory can't be had here") == 1


def test_memory_for_the_stage_but_not_for_the_gradients(fresh):
    for result, _ in fresh(2).run(_train_with, "4"):
        assert result == ("shm", 0.5, 2)


def test_a_small_dev_shm_does_not_matter(tmp_path):
    probe = subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("this machine does not let us mount a /dev/shm of our own")
    program = "import test_memory; print('result', *test_memory._train())"
    inside = (
        "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec mpirun -n 2 --oversubscribe "
        f'--bind-to none "$0" -c "{program}"'
    )
    variables = {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": paths("tests", "tests/torch"),
    }
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "bash", "-c", inside, sys.executable],
        env=environment(str(tmp_path), variables),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result shm 0.5 2.0") == 2
