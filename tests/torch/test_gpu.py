"""Tensors on GPUs, for two ranks; one GPU will do. Run with: pytest -m gpu"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpus import take_gpu

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.gpu


def _as_on_the_cpu() -> list[str]:
    """Every operation on every dtype, beside the same call on CPU tensors."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    rank, wrong = hvd.rank(), []
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    real = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    others = (torch.bool, torch.complex64, torch.complex128)
    calls = {
        "broadcast": lambda x: hvd.broadcast(x, 1),
        "allgather": lambda x: hvd.allgather(x[: 3 + rank]),
        "alltoall": lambda x: hvd.alltoall(x[:9], [4, 5])[0],
        "empty": lambda x: hvd.allreduce(x[:0], op=hvd.Min),
        "grouped": lambda x: torch.cat(hvd.grouped_allreduce([x[:5], x[2:7]], op=hvd.Max)),
        "strided": lambda x: hvd.allreduce(x[:12].view(3, 4).T, op=hvd.Max),
        "reducescatter": lambda x: hvd.reducescatter(x.view(-1, 4), op=hvd.Sum),
        "uneven": lambda x: hvd.reducescatter(x[:7], op=hvd.Max),
        "scaled": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3),
        "Adasum": lambda x: hvd.allreduce(x, op=hvd.Adasum),
    }
    calls |= {
        name: lambda x, name=name: hvd.allreduce(x, op=getattr(hvd, name))
        for name in ("Average", "Sum", "Min", "Max", "Product")
    }
    for dtype in (*whole, *real, *others):
        generator = torch.Generator().manual_seed(rank)
        if dtype in whole:
            numbers = torch.randint(0, 10, (1000,), generator=generator)
        else:
            numbers = torch.randn(1000, generator=generator)
        mine = (numbers > 0) if dtype == torch.bool else numbers.to(dtype)
        for name, call in calls.items():
            if dtype in (*whole, *others) and name == "Adasum":
                continue
            if dtype in others and name not in ("broadcast", "allgather", "alltoall", "Product"):
                fits = name in ("empty", "grouped", "strided", "uneven", "Min", "Max")
                if fits == dtype.is_complex:
                    continue
            expected, result = call(mine.clone()), call(mine.cuda())
            good = result.is_cuda and result.dtype == dtype and result.shape == expected.shape
            if not good or not torch.allclose(
                result.cpu(), expected, rtol=1e-2 if dtype in real[:2] else 1e-6
            ):
                wrong.append(f"{name} {dtype}: {result} instead of {expected}")
    return wrong


def test_as_on_the_cpu(ranks):
    assert ranks(2).run(_as_on_the_cpu) == [[], []]


def _scaled_halves() -> list[bool]:
    """float16 is multiplied by a float16, bfloat16 and float32 by the factor itself."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    same = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        numbers = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype).cuda()
        if dtype == torch.bfloat16:
            scaled = (numbers.float() * 0.3).to(dtype)
        else:
            scaled = numbers * torch.tensor(0.3, dtype=dtype, device="cuda")
        result = hvd.allreduce(numbers, op=hvd.Max, prescale_factor=0.3)
        same.append(torch.equal(result, scaled))
        result = hvd.allreduce(numbers, op=hvd.Max, postscale_factor=0.3)
        same.append(torch.equal(result, scaled))
    return same


def test_scaled_halves(ranks):
    assert ranks(2).run(_scaled_halves) == [[True] * 6] * 2


def _more_calls() -> dict[str, bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    rank, good = hvd.rank(), {}
    # Calls in another order on each rank, and on a stream that is not the default one.
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        tensors = [torch.full((1000 * (i + 1),), float(rank + i), device="cuda") for i in range(8)]
        order = range(8) if rank == 0 else reversed(range(8))
        handles = {i: hvd.allreduce_async(tensors[i], name=f"t{i}", op=hvd.Sum) for i in order}
        sums = [hvd.synchronize(handles[i]) for i in range(8)]
        good["any order"] = all((s == 2 * i + 1).all().item() for i, s in enumerate(sums))
    state = {f"p{i}": torch.full((3, i + 1), float(rank), device="cuda") for i in range(50)}
    state["on the CPU"] = torch.full((3,), float(rank))
    hvd.broadcast_parameters(state, root_rank=1)
    good["broadcast_parameters"] = all((value == 1).all().item() for value in state.values())
    single = hvd.add_process_set([1])
    mine = torch.ones(4, device="cuda")
    if rank == 1:
        good["process set of one"] = (hvd.allreduce(mine, process_set=single) == 1).all().item()
    hvd.remove_process_set(single)
    if rank == 0:
        good["after join"] = (hvd.allreduce(mine, op=hvd.Sum, name="late") == 1).all().item()
    hvd.join()
    try:
        hvd.allreduce(torch.ones(3 + rank, device="cuda"), name="shapes differ")
        good["mismatch"] = False
    except hvd.HorovodInternalError as error:
        good["mismatch"] = "shape" in str(error)
    try:
        hvd.allreduce(torch.ones(3, device="cuda" if rank else "cpu"), name="devices differ")
        good["devices"] = False
    except hvd.HorovodInternalError as error:
        good["devices"] = "device" in str(error)
    hvd.shutdown()
    hvd.init()
    good["again"] = (hvd.allreduce(mine, op=hvd.Sum) == 2).all().item()
    return {name: bool(value) for name, value in good.items() if not value}


def test_more_calls(ranks):
    assert ranks(2).run(_more_calls) == [{}, {}]


def _shared_gpu() -> bool:
    import torch

    import hvdlite.torch as hvd

    os.environ.pop("NCCL_HOSTID", None)
    hvd.shutdown()
    hvd.init()
    mine = torch.full((1000,), hvd.rank() + 1.0, device="cuda:0")
    return bool((hvd.allreduce(mine, op=hvd.Sum) == 3).all())


def test_two_ranks_on_one_gpu(ranks):
    """NCCL refuses that; the tensors go through host memory."""
    assert ranks(2).run(_shared_gpu) == [True, True]


def _large(case: str, early: bool) -> list[bool]:
    """A model of large layers; with `early` its gradients, few and large, are reduced in several
    buckets during the backward pass."""
    import torch

    import hvdlite.torch as hvd

    hvd.shutdown()
    hvd.init()
    take_gpu()
    rank, width = hvd.rank(), 2048 if early else 1500
    begun = []

    def build():
        torch.manual_seed(1)
        layers = [torch.nn.Linear(width, width, bias=not early) for _ in range(9)]
        model = torch.nn.ModuleList(layers).cuda()
        model.table = torch.nn.Embedding(10, width, sparse=case == "sparse").cuda()
        return model

    def loss(model, batch, step, half):
        for layer in model[:8]:
            batch = torch.relu(layer(batch)) + batch
        if case == "missing" and half == 1:  # the last layer has a gradient on rank 1 only
            batch = model[8](batch)
        if case == "sparse" and step and half == 0:  # a sparse gradient comes late, on rank 0
            batch = batch + model.table(torch.tensor([step], device="cuda"))
        return batch.square().mean()

    ours, alone = build(), build()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.01), ours.named_parameters()
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.01)
    for step in range(4):
        batch = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(step)).cuda()
        if case == "frozen" and step == 2:
            for model in (ours, alone):
                model[0].requires_grad_(False)
        optimizer.zero_grad(set_to_none=case != "kept")
        passes = 2 if case == "passes" else 1
        optimizer.set_backward_passes_per_step(passes)
        if case == "reloaded" and step == 2:  # what is under way then counts no more
            loss(ours, batch[rank], step, rank).backward()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
        for _ in range(passes):
            loss(ours, batch[rank], step, rank).backward()
        if step and case == "plain":  # the buckets have begun, if it pays
            begun.append(bool(optimizer._sync.reducer._under_way))
        if case == "clipped":
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.01)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        plain.zero_grad()
        for _ in range(passes):
            (sum(loss(alone, batch[half], step, half) for half in (0, 1)) / 2).backward()
        if case == "clipped":
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        plain.step()
    flat = torch.cat([p.detach().flatten() for p in ours.parameters()])
    single = torch.cat([p.detach().flatten() for p in alone.parameters()])
    both = hvd.allgather(flat.view(1, -1))
    as_meant = case != "plain" or begun == [early] * 3
    return [as_meant, torch.equal(both[0], both[1]), torch.allclose(flat, single, atol=1e-5)]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    "case", ["plain", "kept", "missing", "sparse", "frozen", "passes", "clipped", "reloaded"]
)
def test_large_gradients(ranks, case, early):
    assert ranks(2).run(_large, case, early) == [[True, True, True]] * 2


def _captured() -> list[bool]:
    """The whole step as a CUDA graph, replayed, beside the same steps one by one."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    torch.manual_seed(hvd.rank())
    batches = torch.randn(8, 8, 3, 8, 8, device="cuda")

    def train(wrap) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 5)
        ).cuda()
        rate = torch.tensor(0.01, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

        def step(images):
            optimizer.zero_grad()
            loss = model(images).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step, losses = wrap(step), []
        for i, images in enumerate(batches):
            rate.fill_(0.01 * (i + 1))
            losses.append(step(images))
        return [torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()])]

    losses, flat = train(lambda step: hvd.cuda_graph(step, warmup=3))
    plain_losses, expected = train(lambda step: step)
    both = hvd.allgather(flat.view(1, -1))
    same = [torch.equal(both[0], both[1]), torch.allclose(flat, expected, atol=1e-5)]
    recorded, said = hvd.cuda_graph(lambda x: hvd.allreduce(x) * x.sum().item(), warmup=0), ""
    try:
        recorded(batches)
    except RuntimeError as error:
        said = str(error)
    return [*same, torch.allclose(losses, plain_losses, atol=1e-5), ".item()" in said]


def test_cuda_graph(ranks):
    assert ranks(2).run(_captured) == [[True] * 4] * 2


GRAPH = """
import torch, hvdlite.torch as hvd
from gpus import take_gpu
hvd.init()
take_gpu()
data, stream = torch.ones(1000, device="cuda"), torch.cuda.Stream()
with torch.cuda.stream(stream):
    hvd.allreduce_(data)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    hvd.allreduce_(data, op=hvd.Sum)
for _ in range(3):
    graph.replay()
print("the data", data.unique().tolist())
"""


def test_a_program_ends_with_its_graph(tmp_path):
    """The graph is there until the interpreter goes, and holds calls of NCCL's communicator."""
    program = tmp_path / "program.py"
    program.write_text(GRAPH)
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "hvdrun", "-np", "2", sys.executable, str(program)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.count("the data [8.0]") == 2, done.stdout + done.stderr
    assert done.returncode == 0


def _training(compression: str, memory_format: str) -> list[bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    take_gpu()
    torch.manual_seed(0)

    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5)
        )
        return model.cuda().to(memory_format=getattr(torch, memory_format))

    ours, alone = build(), build()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9),
        ours.named_parameters(),
        compression=getattr(hvd.Compression, compression),
    )
    hvd.broadcast_parameters(ours.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        batch = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(step)).cuda()
        optimizer.zero_grad()
        ours(batch[hvd.rank()]).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        alone(batch.flatten(0, 1)).square().mean().backward()
        plain.step()
    flat = torch.cat([p.detach().flatten() for p in ours.parameters()])
    single = torch.cat([p.detach().flatten() for p in alone.parameters()])
    both = hvd.allgather(flat.view(1, -1))
    tolerance = 1e-4 if compression == "none" else 2e-2
    hvd.broadcast_optimizer_state(optimizer, 0)  # which has a state by now
    momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
    stays = len(momentum) == 4 and all(tensor.is_cuda for tensor in momentum)
    return [torch.equal(both[0], both[1]), torch.allclose(flat, single, atol=tolerance), stays]


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_training(ranks, compression, memory_format):
    assert ranks(2).run(_training, compression, memory_format) == [[True] * 3] * 2
