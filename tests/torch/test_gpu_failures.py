"""Failures while kernels of NCCL wait on the GPU, for two ranks. Run with: pytest -m gpu

Each rank raises, and both go on after shutdown() and init(); a hang is the pool's time limit.
"""

import pytest
from gpus import take_gpu

pytestmark = pytest.mark.gpu


def _broken_lane(error):
    """From now on this rank's part in calls on the GPU raises, after all have agreed on them."""
    import hvdlite.basics

    def run(*_):
        raise error

    hvdlite.basics.engine().channels[0].lane.run = run


def _memory(rank: int) -> None:
    """One rank has no memory for the fusion buffer."""
    import cupy
    import torch

    import hvdlite.torch as hvd

    parts = [torch.ones(100_000, device="cuda") for _ in range(2)]
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    if rank == 1:
        pool.set_limit(size=1024)
    try:
        hvd.grouped_allreduce(parts, name="parts")[0].sum().item()
    finally:
        pool.set_limit(size=0)


def _exception(rank: int) -> None:
    """One rank's call fails for whatever reason."""
    import torch

    import hvdlite.torch as hvd

    if rank == 0:
        _broken_lane(RuntimeError("a reason"))
    hvd.allreduce(torch.ones(10, device="cuda"), name="numbers").sum().item()


def _interrupt(rank: int) -> None:
    """Ctrl-C while the main thread waits for the GPU in foreign code."""
    import os
    import signal
    import threading
    import time

    import torch

    import hvdlite.torch as hvd
    from hvdlite import basics

    if rank == 1:
        basics.engine().channels[0].lane.run = lambda *_: time.sleep(4)
    else:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    hvd.allreduce(torch.ones(10, device="cuda"), name="numbers").sum().item()


def _leaves(rank: int) -> None:
    """A rank leaves between the agreement and its part in the call."""
    import time

    import torch

    import hvdlite.torch as hvd

    data = torch.ones(10, device="cuda")
    if rank == 1:
        handle = hvd.allreduce_async_(data, name="numbers")
        assert not hvd.poll(handle)
        time.sleep(1.5)
        hvd.shutdown()
        raise RuntimeError("has left")
    time.sleep(0.5)
    hvd.allreduce_(data, name="numbers").sum().item()


def _train(rank: int, where: str) -> None:
    import torch

    import hvdlite.torch as hvd

    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    try:
        for step in range(6):
            optimizer.zero_grad()
            output = model(torch.ones(8, 64, device="cuda"))
            if step == 3 and rank == 1:
                if where == "forward":
                    torch.empty(1 << 50, device="cuda")
                elif where == "backward":
                    output.register_hook(lambda _: 1 / 0)
                else:
                    _broken_lane(MemoryError("in step"))
            output.square().mean().backward()
            optimizer.step()
            float(next(model.parameters()).sum())
    except (torch.OutOfMemoryError, ZeroDivisionError):
        hvd.shutdown()  # as a notebook's next cell would
        raise


def _forward(rank: int) -> None:
    _train(rank, "forward")


def _backward(rank: int) -> None:
    _train(rank, "backward")


def _step(rank: int) -> None:
    _train(rank, "step")


CASES = {
    "memory": ("HorovodInternalError", "HorovodInternalError"),
    "exception": ("HorovodInternalError", "HorovodInternalError"),
    "interrupt": ("KeyboardInterrupt", "HorovodInternalError"),
    "leaves": ("HorovodInternalError", "RuntimeError"),
    "forward": ("HorovodInternalError", "OutOfMemoryError"),
    "backward": ("HorovodInternalError", "ZeroDivisionError"),
    "step": ("HorovodInternalError", "HorovodInternalError"),
}


def _fails_and_goes_on(case: str) -> list:
    """What was raised, and whether the ranks compute together afterwards."""
    import time

    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    rank, raised = hvd.rank(), None
    hvd.allreduce(torch.ones(1000, device="cuda"))
    try:
        globals()[f"_{case}"](rank)
        hvd.allreduce(torch.ones(3, device="cuda"), name="after")
    except BaseException as error:
        raised = type(error).__name__
        print(case, rank, repr(error)[:300], flush=True)
    if raised == "KeyboardInterrupt":
        time.sleep(0.1)
    hvd.shutdown()
    hvd.init()
    mine = torch.full((5,), rank + 1.0, device="cuda")
    return [raised, hvd.allreduce(mine, op=hvd.Sum).tolist()]


@pytest.mark.parametrize("case", CASES)
def test_every_rank_raises_and_goes_on(ranks, case):
    told = ranks(2).run(_fails_and_goes_on, case, timeout=60)
    assert told == [[raised, [3.0] * 5] for raised in CASES[case]]
