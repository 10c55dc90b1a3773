"""Streams, devices, groups and worlds on GPUs, for two or three ranks. Run with: pytest -m gpu"""

import pytest
from gpus import take_gpu

pytestmark = pytest.mark.gpu


def _streams_and_devices() -> dict[str, bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    rank, good = hvd.rank(), {}
    # What is current where the result is wanted comes after the call, whatever stream that is on.
    side, data = torch.cuda.Stream(), torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        handle = hvd.allreduce_async_(data, op=hvd.Sum)
    good["another stream"] = hvd.synchronize(handle).sum().item() == 2000
    # Tensors of another GPU of the process than the rank's own, if it has one.
    other = torch.device("cuda", (torch.cuda.current_device() + 1) % torch.cuda.device_count())
    for kind, call in {
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum) == 3,
        "broadcast": lambda x: hvd.broadcast(x, 1) == 2,
        "allgather": lambda x: hvd.allgather(x)[4:] == 2,
    }.items():
        result = call(torch.full((4,), rank + 1.0, device=other))
        good[kind] = result.device == other and result.all().item()
    state = {"here": torch.full((3,), float(rank), device="cuda")}
    state["there"] = torch.full((5,), float(rank), device=other)
    hvd.broadcast_parameters(state, root_rank=1)
    good["model over two"] = all((value == 1).all().item() for value in state.values())
    layers = [torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).to(other)]
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    params = [param for layer in layers for param in layer.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        for factor, layer in enumerate(layers, 1):
            (layer.weight.sum() * factor * (rank + 1)).backward()
        optimizer.step()
    for layer, expected in zip(layers, (-2.0, -5.0), strict=True):
        good[f"gradients {expected}"] = (layer.weight == expected).all().item()
    # A rank that has joined takes part on its own GPU, whichever is current.
    torch.cuda.set_device(0)
    if rank == 0:
        mine = torch.ones(4, device="cuda:0")
        good["joined"] = (hvd.allreduce(mine, op=hvd.Sum, name="late") == 1).all().item()
    hvd.join()
    take_gpu()
    return {name: bool(value) for name, value in good.items() if not value}


def test_streams_and_devices(ranks):
    assert ranks(2).run(_streams_and_devices) == [{}, {}]


def _groups_in_any_order() -> list[float]:
    """Two groups of the same two ranks and more, whose calls each rank begins in another order."""
    import torch

    import hvdlite.torch as hvd
    from hvdlite import basics

    hvd.init()
    take_gpu()
    pair, sums = hvd.add_process_set([0, 1]), []
    for process_set in (hvd.global_process_set, pair):  # so that each group has its NCCL
        if process_set.included():
            hvd.allreduce(torch.ones(1, device="cuda"), process_set=process_set)
    for _ in range(5):
        ours, theirs = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
        handles = [hvd.allreduce_async_(ours, name="of all", op=hvd.Sum)]
        if hvd.rank() < 2:
            handles += [hvd.allreduce_async_(theirs, name="of two", op=hvd.Sum, process_set=pair)]
            groups = [0, pair.process_set_id]
            late = basics.engine().channels[groups[hvd.rank() == 0]]
            held = _Held(late.advance)
            late.advance = held
            while not hvd.poll(handles[hvd.rank()]):
                pass
            held.back = True
        sums += [hvd.synchronize(handle).sum().item() / (1 << 20) for handle in handles]
    hvd.remove_process_set(pair)
    return sums


class _Held:
    """Keeps agreed calls back until they are wanted."""

    def __init__(self, advance):
        self.advance, self.back, self.calls = advance, False, []

    def __call__(self):
        calls, self.calls = [*self.calls, *self.advance()], []
        if not self.back:
            calls, self.calls = [], calls
        return calls


def test_groups_in_any_order(ranks):
    told = ranks(3).run(_groups_in_any_order, timeout=60)
    assert told == [[3.0, 2.0] * 5, [3.0, 2.0] * 5, [3.0] * 5]


def _first_calls() -> list[float]:
    """The first calls of two groups, of which each rank begins another one: NCCL is set up."""
    import torch

    import hvdlite.torch as hvd
    from hvdlite import basics

    hvd.shutdown()
    hvd.init()
    take_gpu()
    pair = hvd.add_process_set([0, 1])
    data = [torch.ones(4, device="cuda"), torch.ones(4, device="cuda")]
    handles = [hvd.allreduce_async_(data[0], name="of all", op=hvd.Sum)]
    if hvd.rank() < 2:
        handles += [hvd.allreduce_async_(data[1], name="of two", op=hvd.Sum, process_set=pair)]
        channels = basics.engine().channels
        first, second = channels[0], channels[pair.process_set_id]
        if hvd.rank() == 1:
            first, second = second, first
        run, second.advance = first.run, _Held(second.advance)

        def begun(requests) -> None:
            second.advance.back = True
            run(requests)

        first.run = begun
    sums = [hvd.synchronize(handle).sum().item() / 4 for handle in handles]
    hvd.shutdown()
    hvd.init()
    return sums


def test_first_calls_of_groups_in_any_order(ranks):
    told = ranks(3).run(_first_calls, timeout=60)
    assert told == [[3.0, 2.0], [3.0, 2.0], [3.0]]


def _memory_after_worlds() -> int:
    """By how many MiB the memory in use grows over some worlds."""
    import torch

    import hvdlite.torch as hvd

    used = []
    for _ in range(5):
        hvd.shutdown()
        hvd.init()
        take_gpu()
        hvd.allreduce(torch.ones(1000, device="cuda"))
        torch.cuda.synchronize()
        used.append(-torch.cuda.mem_get_info()[0] >> 20)
    return used[-1] - used[1]


def test_worlds_give_their_memory_back(ranks):
    assert max(ranks(2).run(_memory_after_worlds)) < 32
