"""Tensors on GPUs, a rank for each of two. Run with: pytest -m gpu"""

import pytest

pytestmark = pytest.mark.gpu


def _on_gpus() -> list[str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    rank, size, wrong = hvd.rank(), hvd.size(), []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        mine = torch.full((1000,), rank + 1, device="cuda").to(dtype)
        results = {
            "allreduce": (hvd.allreduce(mine, op=hvd.Sum), 3),
            "in place": (hvd.allreduce_(mine.clone(), op=hvd.Sum), 3),
            "broadcast": (hvd.broadcast(mine, 1), 2),
            "reducescatter": (hvd.reducescatter(mine, op=hvd.Sum), 3),
        }
        for name, (result, value) in results.items():
            good = result.device == mine.device and result.dtype == dtype
            if not good or not (result == value).all():
                wrong.append(f"{name} {dtype}: {result}")
        gathered = hvd.allgather(mine[: rank + 1])
        if gathered.tolist() != [1, 2, 2] or not gathered.is_cuda:
            wrong.append(f"allgather {dtype}: {gathered}")
        got, splits = hvd.alltoall(mine[:3], [1, 2])
        if got.tolist() != [1, 2] and got.tolist() != [1, 1, 2, 2]:
            wrong.append(f"alltoall {dtype}: {got} {splits}")
    assert size == 2
    return wrong


def test_collectives(ranks):
    assert ranks(2).run(_on_gpus) == [[], []]


def _training(compression: str, memory_format: str) -> list[bool]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
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
    return [torch.equal(both[0], both[1]), torch.allclose(flat, single, atol=tolerance)]


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_training(ranks, compression, memory_format):
    assert ranks(2).run(_training, compression, memory_format) == [[True, True]] * 2
