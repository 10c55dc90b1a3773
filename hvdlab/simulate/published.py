"""Published scaling figures, and what the simulation makes of the same machines.

Two numbers have no source, and are chosen from two of the nine published figures, those of the
smallest runs: the jitter of the compute time (Inception V3 on 16 GPUs, which hardly waits for the
network) and the share of the line rate (VGG-16 on 16 GPUs, which mostly does). The other seven
are predictions from them.

Sources of the figures:

- 16 GPUs, and one alone: Horovod's README of 2017, as its pull request 44 shows it
  (https://github.com/horovod/horovod/pull/44): images/s of one P100 with batch 64 are 134.4
  (Inception V3), 119.4 (ResNet-101) and 130.9 (VGG-16); 16 GPUs with RDMA and NCCL do 2,022.6,
  1,746.2 and 1,787.4.
- 128 GPUs, 32 servers: the README that followed: 90, 90 and 79 %. The same rates of one GPU.
- 512 GPUs, 128 servers: today's README (see also A. Sergeev, M. Del Balso, arXiv:1802.05799): 90,
  90 and 68 %. These were run with TensorFlow's own benchmark programs, so the rates of one GPU are
  those of TensorFlow's benchmark page for the P100, batch 64: 142 (Inception V3) and 154 (VGG-16).
  ResNet-101 is not on the page: 129 lies between its 219 (ResNet-50) and 91.8 (ResNet-152), as
  the number of multiplications does. On these rates the efficiency of VGG-16 hangs: the faster a
  GPU, the less time there is to hide the communication in.
- The cycle of 5 ms and the fusion buffer of 64 MB: Horovod's defaults of that time (release notes
  of 0.21.0, which changed them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .clusters import PUBLISHED_CLUSTER
from .networks import INCEPTION_V3, RESNET101, VGG16, Network
from .step import Step, step

BATCH = 64
CYCLE = 0.005
JITTER = 0.03  # of a step's compute time


@dataclass(frozen=True)
class Published:
    """A published efficiency (0 to 1), and the images a second of one GPU alone."""

    network: Network
    workers: int
    efficiency: float
    images_per_second: float


def _figures(network: Network, *runs: tuple[int, float, float]) -> list[Published]:
    return [Published(network, workers, share, rate) for workers, share, rate in runs]


PUBLISHED: tuple[Published, ...] = (
    *_figures(
        INCEPTION_V3, (16, 2022.6 / 16 / 134.4, 134.4), (128, 0.90, 134.4), (512, 0.90, 142.0)
    ),
    *_figures(RESNET101, (16, 1746.2 / 16 / 119.4, 119.4), (128, 0.90, 119.4), (512, 0.90, 129.0)),
    *_figures(VGG16, (16, 1787.4 / 16 / 130.9, 130.9), (128, 0.79, 130.9), (512, 0.68, 154.0)),
)


def reproduce(figure: Published, **changes: Any) -> Step:
    """Simulate a published run; `changes` are arguments of step() that ask "what if"."""
    assumed: dict[str, Any] = {
        "workers": figure.workers,
        "cluster": PUBLISHED_CLUSTER,
        "alone": BATCH / figure.images_per_second,
        "cycle": CYCLE,
        "jitter": JITTER,
        **changes,
    }
    return step(figure.network, **assumed)
