"""One training step on GPUs with hvdlite, beside the same step alone and with torch's DDP.

    horovodrun -np 2 python benchmarks/gpu_step.py [MODEL ...]

- DDP: DistributedDataParallel as it comes
- tuned: with gradient_as_bucket_view, static_graph and no broadcast of buffers
- graph: hvdlite, the whole step by `hvd.cuda_graph` (small models)

SGD with momentum. All ranks compute in all cases; each variant's steps are timed in turn with the
others', and its time is that of the slowest rank, the median over the rounds.
ResNet-50 and VGG-16 are torchvision's, in channels_last.
"""

import gc
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import COMM, interleaved, small_cnn, start_torch, table

import hvdlite.torch as hvd

ROUNDS = 5


class Block(torch.nn.Module):
    """Two convolutions, each behind a norm and a ReLU, and a short cut around them."""

    def __init__(self, narrow: int, wide: int, stride: int):
        super().__init__()
        nn = torch.nn
        self.norm1, self.norm2 = nn.BatchNorm2d(narrow), nn.BatchNorm2d(wide)
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(narrow, wide, 1, stride, bias=False) if narrow != wide else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(x))
        short = self.short(y) if self.short else x
        return short + self.conv2(F.relu(self.norm2(self.conv1(y))))


def wide_resnet() -> torch.nn.Module:
    """Wide ResNet 16-10 for images of 1 x 28 x 28 (Zagoruyko and Komodakis, 2016)."""
    nn, layers, narrow = torch.nn, [torch.nn.Conv2d(1, 16, 3, padding=1, bias=False)], 16
    for wide, stride in ((160, 1), (320, 2), (640, 2)):
        layers += [Block(narrow, wide, stride), Block(wide, wide, 1)]
        narrow = wide
    tail = [nn.BatchNorm2d(640), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *tail, nn.Linear(640, 10))


class Transformer(torch.nn.Module):
    """An encoder of BERT-base's size: 12 layers of 768, 12 heads, 30,522 words."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.words, self.places = nn.Embedding(30522, 768), nn.Embedding(128, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 12)
        self.head = nn.Linear(768, 30522)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.layers(x)).flatten(0, 1)


def photos(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    return images.contiguous(memory_format=torch.channels_last), labels(batch, 1000)


def labels(*shape: int) -> torch.Tensor:
    *shape, kinds = shape
    return torch.randint(0, kinds, shape, device="cuda")


def vision(name: str) -> torch.nn.Module:
    import torchvision

    return getattr(torchvision.models, name)().to(memory_format=torch.channels_last)


def gray(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 1, 28, 28, device="cuda"), labels(batch, 10)


# Model, data, bfloat16, steps a round.
MODELS: dict[str, tuple[Callable, Callable, bool, int]] = {
    "small CNN, batch 256": (small_cnn, lambda: gray(256), False, 200),
    "ResNet-50, batch 64, TF32": (lambda: vision("resnet50"), lambda: photos(64), False, 25),
    "ResNet-50, batch 128, bf16": (lambda: vision("resnet50"), lambda: photos(128), True, 25),
    "VGG-16, batch 32, bf16": (lambda: vision("vgg16"), lambda: photos(32), True, 40),
    "Wide ResNet 16-10, batch 128, bf16": (wide_resnet, lambda: gray(128), True, 25),
    "transformer, batch 16 x 128, bf16": (
        Transformer,
        lambda: (labels(16, 128, 30522), labels(16 * 128, 30522)),
        True,
        25,
    ),
}


def trainer(kind: str, build: Callable, data: tuple, half: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    inputs, targets = data
    model = build().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    device_ids = [torch.cuda.current_device()]
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids)
    elif kind == "tuned":
        model = torch.nn.parallel.DistributedDataParallel(
            model,
            device_ids,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=True,
        )
    elif kind != "alone":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()

    return hvd.cuda_graph(step) if kind == "graph" else step


def main() -> None:
    hvd.init()
    device = torch.device("cuda", hvd.local_rank())
    torch.cuda.set_device(device)
    start_torch("nccl", device_id=device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    kinds = ["alone", "DDP", "tuned", "hvdlite", "graph"]
    columns = {"model": "{}"} | dict.fromkeys(kinds, "{:.3f} ms")
    columns |= dict.fromkeys(["alone / hvdlite", "tuned / hvdlite"], "{:.3f}")
    results = table("One training step on the GPU", columns, "time (ms)")
    for name, (build, data, half, steps) in MODELS.items():
        if sys.argv[1:] and not any(wanted in name for wanted in sys.argv[1:]):
            continue
        batch = data()
        variants = {
            kind: trainer(kind, build, batch, half)
            for kind in kinds
            if kind != "graph" or name.startswith("small")
        }
        for step in variants.values():
            for _ in range(10):
                step()
        times = interleaved(variants, ROUNDS, steps, warmup=1, finish=torch.cuda.synchronize)
        milliseconds = [times[kind] * 1e3 if kind in times else None for kind in kinds]
        ratios = [times[kind] / times["hvdlite"] for kind in ("alone", "tuned")]
        results.row(name, *milliseconds, *ratios)
        del variants
        gc.collect()
        torch.cuda.empty_cache()
        COMM.Barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
