"""Engines of ipyparallel, as `%%px` cells use them: one world, errors, interrupts, restarts."""

import os
import signal
import sys
import time
from pathlib import Path

import ipyparallel as ipp
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]  # the engines don't find tests/mpi.py
# Engines count from their second heartbeat on; lost they are after 30 s, as by default.
SOONER = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two engines under one mpirun. Open MPI asks root to say twice that it is meant."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    # mpiexec lies beside this Python, whether or not the environment is activated.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")

    def start() -> ipp.Cluster:
        profile = str(tmp_path / "profile")
        return ipp.Cluster(engines="mpi", n=2, profile_dir=profile, controller_args=SOONER)

    yield start


def _who() -> tuple[int, int, list[int], int]:
    import os

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    total = int(hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum))
    return hvd.rank(), hvd.size(), hvd.allgather_object(os.getpid()), total


def _train() -> list[float]:
    import torch

    import hvdlite.torch as hvd

    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
        optimizer.step()
    return model.weight.flatten().tolist()


def _one_raises() -> None:
    import torch

    import hvdlite.torch as hvd

    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 1:
        raise KeyError("between two collectives")
    hvd.allreduce(torch.ones(1), name="alone")


def _goes_on() -> float:
    import torch

    import hvdlite.torch as hvd

    hvd.shutdown()
    hvd.init()
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_engines_are_one_world_that_survives_errors_and_interrupts(cluster):
    pids: list[int] = []
    for _ in range(2):  # stopped, and started anew
        with cluster() as client:
            view = client[:]
            answers = view.apply_sync(_who)
            assert sorted(rank for rank, *_ in answers) == [0, 1]
            assert {(size, total) for _, size, _, total in answers} == {(2, 3)}
            pids += answers[0][2]
            one, two = view.apply_sync(_train)
            assert one == two
            # The engine that raises shows its error; the other one waits until it is interrupted.
            result = view.apply_async(_one_raises)
            while not any(message["completed"] for message in result.metadata):
                time.sleep(0.1)
            client.send_signal(signal.SIGINT)
            with pytest.raises(ipp.error.CompositeError) as caught:
                result.get(timeout=60)
            told = str(caught.value)
            assert "between two collectives" in told and "KeyboardInterrupt" in told
            assert view.apply_sync(_goes_on) == [2.0, 2.0]
    end = time.monotonic() + 20
    while (alive := [p for p in pids if psutil.pid_exists(p)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert alive == [] and os.getpid() not in pids


def test_engines_without_mpi_are_refused():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hvdlite\n"
        "try: hvdlite.init(); told = 'alone'\n"
        "except RuntimeError as error: told = str(error)"
    )
    with ipp.Cluster(n=2, log_level=40, controller_args=SOONER) as client:
        client[:].execute(code, block=True)
        first, second = client[:].pull("told", block=True)
    assert first == "alone"  # it may be the only one
    assert "this is engine 1 of ipyparallel" in second and 'engines="mpi"' in second
